// Senses: the vectors of a word in many sentences, in two dimensions

// word, use: indices of the chosen word and of its chosen sentence, or null
const senses = {word: 0, layer: null, use: null};
// Size of the plot, and space around the marks
const SIDE = 440, EDGE = 26;

// A mark of radius r. Its shape shows the sense to readers who see no colours
function mark(shape, r) {
  const corners = {1: [[-r, -r], [r, -r], [r, r], [-r, r]], 2: [[0, -1.3 * r],
    [1.2 * r, 0.9 * r], [-1.2 * r, 0.9 * r]], 3: [[0, -1.4 * r], [1.4 * r, 0],
    [0, 1.4 * r], [-1.4 * r, 0]]}[shape % 4];
  return corners ? el('polygon', {points: corners.map((xy) => xy.join())
    .join(' ')}) : el('circle', {r: 1.1 * r});
}

function drawSenses(panel) {
  if (senses.layer === null) senses.layer = data.layers;
  const plot = el('svg', {viewBox: [0, 0, SIDE, SIDE].join(' '), role:
    'group', 'aria-labelledby': 'sense-heading', id: 'plot'});
  const heading = el('h3', {id: 'sense-heading', dir: 'auto'});
  const keys = el('ul', {class: 'keys'});
  const sentence = el('p', {class: 'sentence', id: 'use', dir: 'auto'});
  const spread = el('p', {class: 'soft', id: 'spread'});
  const list = el('ol', {class: 'uses'});
  const details = el('details', null, el('summary', null,
    'All sentences as a list'), list);
  let marks = [];
  const senseColour = (word, k) => colourOf(word.names.length
    ? word.senses[k] : 0);

  function choose(k, aloud) {
    const word = data.senses[senses.word];
    senses.use = k;
    marks.forEach((one, at) => one.classList.toggle('active', at === k));
    sentence.parentNode.classList.toggle('screen', k === null);
    if (k === null) {
      setContents(sentence, el('span', {class: 'soft'}, 'Point at a mark, ' +
        'or move to it with Tab and the arrow keys, to read its sentence.'));
      return;
    }
    const [begin, end] = word.spans[k];
    setContents(sentence, word.names.length ? el('strong', null,
      word.names[word.senses[k]] + ': ') : '',
    inContext(word.texts[k], begin, end, 160));
    if (aloud) announce(sentence.textContent);
  }

  function place() {
    const word = data.senses[senses.word], points = word.layers[senses.layer];
    const xs = points.map((xy) => xy[0]), ys = points.map((xy) => xy[1]);
    const mid = (a) => (Math.min(...a) + Math.max(...a)) / 2;
    const size = Math.max(Math.max(...xs) - Math.min(...xs),
      Math.max(...ys) - Math.min(...ys)) || 1;
    const half = SIDE / 2, zoom = (SIDE - 2 * EDGE) / size;
    marks.forEach((one, k) => {
      one.style.transform = 'translate(' + (half + zoom * (xs[k] - mid(xs))) +
        'px, ' + (half - zoom * (ys[k] - mid(ys))) + 'px)';
      one.setAttribute('fill', senseColour(word, k));
    });
    heading.textContent = word.word + ' in ' + points.length +
      ' sentences of ' + word.sample + ', ' + (senses.layer
      ? 'layer ' + senses.layer : 'embeddings');
    spread.textContent = 'The marks spread over ' + size.toPrecision(2) +
      ' units of the vectors. Each layer is scaled to fill the picture.';
  }

  function build() {
    const word = data.senses[senses.word];
    marks = word.texts.map((sentenceText, k) => el('g', {class: 'point',
      role: 'img', tabindex: -1, 'data-use': k, 'aria-label':
        (word.names.length ? word.names[word.senses[k]] + ': ' : '') +
        sentenceText, onmouseenter: () => choose(k), onclick: () =>
        choose(k, true), onfocus: () => choose(k)},
    el('title', null, sentenceText),
    mark(word.names.length ? word.senses[k] : 0, 6)));
    setContents(plot, el('rect', {class: 'axis', x: 0.5, y: 0.5,
      width: SIDE - 1, height: SIDE - 1, rx: 8}), marks);
    roving(marks);
    setContents(keys, word.names.map((name, k) => {
      const shape = mark(k, 5), box = el('svg', {viewBox: '-13 -7 26 14',
        'aria-hidden': 'true'}, shape);
      shape.setAttribute('fill', colourOf(k));
      return el('li', null, box, name + ' (' + word.senses.filter((s) =>
        s === k).length + ')');
    }));
    setContents(list, word.texts.map((sentenceText, k) => el('li', null,
      el('span', {class: 'text', dir: 'auto'}, inContext(sentenceText,
        ...word.spans[k], 400)), el('span', {class: 'value'}, word.names.length
      ? word.names[word.senses[k]] : ''))));
    choose(senses.use);
    place();
  }

  const slider = layerSlider('sense-layer', senses.layer, (layer) => {
    senses.layer = layer;
    place();
  });
  panel.append(el('p', {class: 'hint'}, 'Each mark is the word in one ' +
    'sentence. If the model separates the senses, marks of one shape form ' +
    'a group in the upper layers. The two dimensions are the principal ' +
    'components of the vectors of a layer.'),
  el('div', {class: 'controls'}, el('div', {class: 'slide'},
    el('label', {for: 'word'}, 'Word'), el('select', {id: 'word', dir:
      'auto', onchange: (event) => {
      senses.word = +event.target.value;
      senses.use = null;
      build();
    }}, data.senses.map((word, k) => el('option', {value: k, selected: k ===
      senses.word}, word.word)))), slider),
  el('div', {class: 'split'},
    el('div', {class: 'card'}, heading, keys, plot, spread),
    el('div', {class: 'card stay'}, el('h3', null, 'The sentence'), sentence,
      details)));
  build();
  return build;
}

addTab({key: 'senses', title: 'Senses', draw: drawSenses,
  missing: () => data.senses.length ? null : 'No word of the texts occurs ' +
    'often enough in the sample. Name a word with --word when you make the ' +
    'page.'});
