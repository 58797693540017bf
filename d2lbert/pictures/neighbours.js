// Neighbours: the nearest tokens in a sample of sentences

// same: 'kind' for neighbours among all tokens, 'same' among the same token
const nearby = {layer: null, token: null, same: 'kind'};

// A part of a sentence, as contents of an element: the characters from begin
// to end are marked, and there are at most `most` others on either side
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
  const one = text();
  if (nearby.layer === null) nearby.layer = data.layers;
  let token = one.tokens.findIndex((each, t) => !each.special && t > 1);
  if (token < 0) token = 0;
  const heading = el('h3', {id: 'near-heading', dir: 'auto'});
  const list = el('ol', {class: 'uses', id: 'near'});
  function show(aloud) {
    const [kind, same] = one.near[nearby.layer][token];
    const flat = nearby.same === 'same' && same !== 0 ? same : kind;
    const rows = [];
    for (let k = 0; k < flat.length; k += 2) rows.push([flat[k], flat[k + 1]]);
    const name = shown(one.tokens[token]);
    heading.textContent = 'Nearest to ' + name + ', ' + (nearby.layer
      ? 'layer ' + nearby.layer : 'embeddings');
    clear(list, rows.length ? rows.map(([index, cosine]) => {
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
  panel.append(el('p', {class: 'hint'}, 'The tokens with the most ' +
    'similar vectors in ' + counted(data.sample.count) + ' sentences of ' +
    data.sample.name + '. The number is the cosine similarity; 1 is the ' +
    'same direction.'), box,
  el('div', {class: 'controls'},
    layerSlider('near-layer', nearby.layer, (layer) => {
      nearby.layer = layer;
      show();
    }),
    radios('same', 'Among', [['kind', 'all tokens'], ['same', 'the same ' +
      'token']], nearby.same, (value) => {
      nearby.same = value;
      show(true);
    })),
  el('div', {class: 'card'}, heading, list));
  // The token that is chosen at first is not read aloud
  const before = byId('live').textContent;
  press(token);
  announce(before);
  return null;
}

addTab({key: 'neighbours', title: 'Neighbours', draw: drawNeighbours,
  perText: true});
