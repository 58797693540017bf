// Neighbours: the nearest tokens in a sample of sentences

// among: 'kind' for neighbours among all tokens, 'same' for neighbours among
// occurrences of the same token
const nearby = {layer: null, among: 'kind'};

// A part of a sentence, as contents of an element: the marked characters from
// begin to end, and at most `most` characters on each side
function inContext(sentence, begin, end, most) {
  const all = characters(sentence);
  const blank = (k) => !all[k].trim();
  let first = Math.max(0, begin - most), last = Math.min(all.length,
    end + most);
  // Cut between words if there is a blank
  for (let k = first; first && k < begin; k++) {
    if (blank(k)) { first = k; break; }
  }
  for (let k = last - 1; last < all.length && k > end; k--) {
    if (blank(k)) { last = k + 1; break; }
  }
  const before = (first ? '\u2026' : '') + all.slice(first, begin).join('');
  const after = all.slice(end, last).join('') + (last < all.length
    ? '\u2026' : '');
  return end > begin ? [before, el('mark', null, all.slice(begin, end)
    .join('')), after] : [all.slice(0, 2 * most).join('') +
      (all.length > 2 * most ? '\u2026' : '')];
}

function drawNeighbours(panel) {
  const textData = currentText();
  if (nearby.layer === null) nearby.layer = data.layers;
  let token = textData.tokens.findIndex((each, t) => !each.special && t > 1);
  if (token < 0) token = 0;
  const heading = el('h3', {id: 'near-heading', dir: 'auto'});
  const list = el('ol', {class: 'uses', id: 'near'});
  function show(aloud) {
    // Lists [i, cosine, i, cosine, ...], or 0 for a second list equal to the
    // first: see _neighbour_data in show.py
    const [ofAll, ofSame] = textData.near[nearby.layer][token];
    const flat = nearby.among === 'same' && ofSame !== 0 ? ofSame : ofAll;
    const rows = [];
    for (let k = 0; k < flat.length; k += 2) rows.push([flat[k], flat[k + 1]]);
    const name = tokenText(textData.tokens[token]);
    heading.textContent = 'Nearest to ' + name + ', ' + (nearby.layer
      ? 'layer ' + nearby.layer : 'embeddings');
    setContents(list, rows.length ? rows.map(([index, cosine]) => {
      const [sentence, begin, end] = data.sample.tokens[index];
      return el('li', {'data-value': cosine}, el('span', {class: 'text',
        dir: 'auto'}, inContext(data.sample.sentences[sentence], begin, end,
        70)), el('span', {class: 'value'}, cosine.toFixed(4)));
    }) : el('li', null, 'The sample has no other ' + name + '.'));
    if (aloud) {
      announce(heading.textContent + ': ' + rows.slice(0, 3).map(([index]) => {
        const [sentence, begin, end] = data.sample.tokens[index];
        return characters(data.sample.sentences[sentence]).slice(
          Math.max(0, begin - 25), end + 25).join('');
      }).join('; '));
    }
  }
  const {box, press} = flow('Tokens of the text; press one to see its ' +
    'neighbours', () => true, (t) => {
    token = t;
    show(true);
  });
  panel.append(el('p', {class: 'hint'}, 'Tokens in ' +
    formatNumber(data.sample.count) + ' sentences of ' + data.sample.name +
    ' whose vectors are most similar to the vector of the chosen token. The ' +
    'number is the cosine similarity: 1 means the same direction.'), box,
  el('div', {class: 'controls'},
    layerSlider('near-layer', nearby.layer, (layer) => {
      nearby.layer = layer;
      show();
    }),
    radios('same', 'Among', [['kind', 'all tokens'], ['same', 'the same ' +
      'token']], nearby.among, (value) => {
      nearby.among = value;
      show(true);
    })),
  el('div', {class: 'card'}, heading, list));
  // `press` lets screen readers read aloud; the first token must stay silent
  const before = byId('live').textContent;
  press(token);
  announce(before);
  return null;
}

addTab({key: 'neighbours', title: 'Neighbours', draw: drawNeighbours,
  perText: true});
