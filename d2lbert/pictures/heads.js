// Heads: their weights, and a grid of small pictures to pick heads from

const headCache = new Map();

// The weights of a head for the current text, (T, T) row by row. quantize in
// show.py describes how they are stored
function headWeights(layer, head) {
  const key = [page.text, layer, head].join();
  if (headCache.has(key)) return headCache.get(key);
  const count = currentText().tokens.length, weightBytes = data.bits / 8;
  const headBytes = count * count * weightBytes;
  const first = (layer * data.heads + head) * headBytes;
  // Base64 has groups of four characters for three bytes
  const begin = Math.floor(first / 3);
  const end = Math.ceil((first + headBytes) / 3);
  const raw = atob(currentText().attention.slice(4 * begin, 4 * end));
  const skip = first - 3 * begin;   // bytes of the head before
  const weights = new Float32Array(count * count);
  for (let k = 0; k < weights.length; k++) {
    const at = skip + k * weightBytes;
    weights[k] = (raw.charCodeAt(at) +
      (weightBytes === 2 ? 256 * raw.charCodeAt(at + 1) : 0)) ** 2;
  }
  for (let i = 0; i < count; i++) {
    let sum = 0;
    for (let j = 0; j < count; j++) sum += weights[i * count + j];
    if (sum > 0) {
      for (let j = 0; j < count; j++) weights[i * count + j] /= sum;
    }
  }
  if (headCache.size >= 24) headCache.delete(headCache.keys().next().value);
  headCache.set(key, weights);
  return weights;
}

// The heads [layer, head] that are shown: at first the text's clearest head
// (see clearest_head in activations.py)
const pickedHeads = () => attention.picked === null ? [currentText().head]
  : [...attention.picked].map((one) => one.split(',').map(Number))
    .sort((a, b) => a[0] - b[0] || a[1] - b[1]);

function meanWeights(heads) {
  if (heads.length === 1) return headWeights(...heads[0]);
  const mean = new Float32Array(currentText().tokens.length ** 2);
  for (const head of heads) {
    const weights = headWeights(...head);
    for (let k = 0; k < mean.length; k++) mean[k] += weights[k];
  }
  for (let k = 0; k < mean.length; k++) mean[k] /= heads.length;
  return mean;
}

const headName = ([layer, head]) => 'layer ' + (layer + 1) + ', head ' +
  (head + 1);

// The grid of all layers and heads. It calls press([layer, head]) when a head
// is pressed. A button for several heads calls pickWhere(wanted), where
// wanted(layer, head) is true for these heads
function headGrid(press, pickWhere) {
  const cells = [], buttons = [];
  const rows = [el('tr', null, el('th', null,
    el('button', {type: 'button', 'aria-label': 'all layers and heads',
      title: 'all', onclick: () => pickWhere(() => true)}, '\u2217')),
  ...Array.from({length: data.heads}, (_, h) => el('th', {scope: 'col'},
    el('button', {type: 'button', 'aria-label': 'head ' + (h + 1) +
      ' of all layers', onclick: () => pickWhere((l, k) => k === h)},
    String(h + 1)))))];
  for (let l = 0; l < data.layers; l++) {
    const row = el('tr', null, el('th', {scope: 'row'}, el('button', {type:
      'button', 'aria-label': 'all heads of layer ' + (l + 1), onclick: () =>
      pickWhere((k) => k === l)}, String(l + 1))));
    for (let h = 0; h < data.heads; h++) {
      const canvas = el('canvas', {'aria-hidden': 'true'});
      const button = el('button', {type: 'button', class: 'head',
        'data-head': l + ',' + h,
        'aria-label': headName([l, h]), title: headName([l, h]),
        onclick: () => press([l, h])}, canvas);
      buttons.push(button);
      cells.push([l, h, canvas]);
      row.append(el('td', null, button));
    }
    rows.push(row);
  }
  const table = el('table', {'aria-label': 'Layers (rows) and heads ' +
    '(columns)'}, rows);
  roving(buttons, data.heads);
  requestAnimationFrame(() => table.parentNode && new ResizeObserver(() => {
    const room = table.parentNode.clientWidth - 60;
    table.style.setProperty('--cell', Math.max(22, Math.min(64, Math.floor(
      room / data.heads) - 3)) + 'px');
  }).observe(table.parentNode));
  return {table, buttons, cells};
}

// Draw the pictures of all heads, a few at a time so that the page responds
function drawThumbs(table, cells, count) {
  const drawnText = page.text;
  let next = 0;
  function drawSome() {
    const until = page.printing ? Infinity : performance.now() + 14;
    while (next < cells.length && performance.now() < until) {
      if (drawnText !== page.text || !table.isConnected) return;
      drawThumb(...cells[next++], count);
    }
    if (next < cells.length) setTimeout(drawSome, 0);
    else table.dataset.done = 'yes';
  }
  if (page.printing) drawSome();
  else setTimeout(drawSome, 0);
}

// The opacity of a weight, on one scale for all heads: a head that attends to
// all tokens is pale, a head that attends to one is dark. The square root
// keeps small weights visible
const opacityOf = (weight) => Math.sqrt(Math.min(weight, 1));

// A legend of some weights with their opacities
function opacityLegend() {
  return el('p', {class: 'shades soft'}, 'Weight, for all heads: ',
    [0.01, 0.1, 0.5, 1].map((weight) => el('span', null, el('i', {style:
      'opacity:' + opacityOf(weight), 'data-weight': weight}), (100 * weight) +
      ' %')));
}

// Draw a head as a small picture. For a long text, a pixel covers several
// weights and shows the largest
function drawThumb(layer, head, canvas, count) {
  const weights = headWeights(layer, head), size = Math.min(count, 40);
  const largest = new Float32Array(size * size);
  for (let i = 0; i < count; i++) {
    const row = Math.floor(i * size / count) * size;
    for (let j = 0; j < count; j++) {
      const at = row + Math.floor(j * size / count);
      largest[at] = Math.max(largest[at], weights[i * count + j]);
    }
  }
  canvas.width = canvas.height = size;
  const pen = canvas.getContext('2d');
  const image = pen.createImageData(size, size);
  for (let k = 0; k < largest.length; k++) {
    image.data[4 * k + 3] = Math.round(255 * opacityOf(largest[k]));
  }
  pen.putImageData(image, 0, 0);
}
