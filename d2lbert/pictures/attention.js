// Attention: how much each token attends to each other token, by head

// The smallest weight of a chosen token for which a line is drawn
const LEAST_OF_TOKEN = 0.005;
// A text of more tokens is a shaded paragraph: lines between two long columns
// cannot be followed
const MOST_IN_COLUMNS = 64;
// A text of more tokens has no table of weights
const MOST_IN_TABLE = 80;

// mode: 'one' head, 'several' heads, or the 'mean' of several.
// picked: a set of keys 'layer,head', or null until the reader picks a head.
// floor: position of the slider, or null until the reader moves it. Lines are
// drawn for weights of at least (floor / 100) squared.
// active, pinned: see lines.js
const attention = {mode: 'one', picked: null, hidesSpecial: false,
  floor: null, active: null, pinned: null};

function drawAttention(panel) {
  const tokens = currentText().tokens, count = tokens.length;
  const long = count > MOST_IN_COLUMNS, state = attention;
  state.active = state.pinned = null;
  if (long && state.mode === 'several') state.mode = 'mean';
  let mean, kept;   // see lines.js

  const modes = radios('mode', 'Show', [['one', 'one head'],
    ...long ? [] : [['several', 'several heads']],
    ['mean', 'mean of several']], state.mode, (mode) => {
    state.mode = mode;
    if (mode === 'one') pick(pickedHeads().slice(0, 1));
    else refresh();
  });
  const floorLabel = el('output', {for: 'floor'});
  const floor = el('input', {type: 'range', id: 'floor', min: 0, max: 100,
    step: 0.1, value: state.floor || 0, oninput: () => {
      state.floor = +floor.value;
      paint();
    }});
  const controls = el('div', {class: 'controls'}, modes,
    long ? [] : el('div', {class: 'slide'}, el('label', {for: 'floor'},
      'Least weight'), floor, floorLabel),
    el('label', {class: 'choice'}, el('input', {type: 'checkbox', id:
      'hide', checked: state.hidesSpecial, onchange: (event) => {
      state.hidesSpecial = event.target.checked;
      layout();
    }}), 'hide ' + data.special.join(' and ')));

  const {table, buttons, cells} = headGrid(press, pickWhere);
  const picked = el('ul', {class: 'keys picked', 'aria-label': 'Heads shown'});

  function press(head) {
    if (state.mode === 'one') return pick([head]);
    const heads = pickedHeads();
    const others = heads.filter((one) => String(one) !== String(head));
    const wasPicked = others.length < heads.length;
    if (!wasPicked) pick([...others, head]);
    else if (others.length) pick(others);
  }
  function pickWhere(wanted) {
    if (state.mode === 'one') {
      state.mode = 'mean';
      modes.querySelector('[value="mean"]').checked = true;
    }
    pick(cells.filter(([layer, head]) => wanted(layer, head)));
  }
  function pick(heads) {
    state.picked = new Set(heads.map(([layer, head]) => layer + ',' + head));
    refresh();
  }

  const view = (long ? shadedText : twoColumns)(tokens, {
    point: (t) => activate(t), leave: () => activate(state.pinned),
    focus: (t) => activate(t, true), press: (t) => {
      state.pinned = state.pinned === t ? null : t;
      activate(state.pinned === null ? t : state.pinned, true);
    }});
  view.box.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return;
    state.pinned = null;
    activate(null);
  });
  view.box.addEventListener('focusout', (event) => {
    if (!view.box.contains(event.relatedTarget)) activate(state.pinned);
  });
  const status = el('p', {class: 'soft', id: 'lines'});
  const lists = attentionLists(tokens);
  const weightTable = attentionTable(tokens);

  function layout() {
    kept = tokens.map((token, t) => t).filter((t) =>
      !(state.hidesSpecial && tokens[t].special));
    view.layout(kept);
    if (!kept.includes(state.pinned)) state.pinned = null;
    if (!kept.includes(state.active)) state.active = null;
    refresh();
  }

  function refresh() {
    const heads = pickedHeads(), keys = heads.map(String);
    buttons.forEach((button) => button.setAttribute('aria-pressed',
      String(keys.includes(button.dataset.head))));
    mean = meanWeights(heads);
    const several = state.mode === 'several';
    setContents(picked, heads.slice(0, 8).map((head, k) => el('li', null,
      several ? legendLine(colourOf(k), k) : legendLine(colour('out'), 0),
      headName(head))), heads.length > 8 ? el('li', null, 'and ' +
      (heads.length - 8) + ' more') : []);
    activate(state.active);
    weightTable.update(mean, kept);
  }

  function activate(t, aloud) {
    state.active = t;
    view.mark({active: t, pinned: state.pinned, mean, kept});
    lists.update({active: t, mean, kept, aloud});
    paint();
  }

  function paint() {
    const heads = pickedHeads(), several = state.mode === 'several';
    if (state.floor === null) {
      floor.value = firstFloor(several ? heads.map((head) =>
        headWeights(...head)) : [mean], count, kept);
    }
    const least = (floor.value / 100) ** 2;
    // All lines of an active token are drawn, in the colours of its two lists
    const isActive = state.active !== null;
    floor.disabled = isActive;
    floorLabel.textContent = isActive ? 'all' : percent(least);
    floor.setAttribute('aria-valuetext', floorLabel.textContent);
    const maps = several && !isActive
      ? heads.map((head, k) => [headWeights(...head), colourOf(k)])
      : [[mean, colour('out')]];
    status.textContent = view.paint({maps, kept, active: state.active,
      least: isActive ? LEAST_OF_TOKEN : least});
  }

  panel.append(el('p', {class: 'hint'}, 'In each head, every token divides ' +
    '100 % of its attention among the tokens of the text. The grid has a ' +
    'small picture of each head, all on one scale: a row is a token that ' +
    'attends, a column is a token that it attends to. The page opens on the ' +
    'head in which words attend most clearly to other words. The numbers at ' +
    'the edges of the grid pick all heads of a layer, or one head of every ' +
    'layer.'), controls,
  el('div', {class: 'attention'},
    el('div', {class: 'card heads'}, el('h3', null, 'Layers and heads'),
      table, opacityLegend(), picked),
    el('div', {class: 'card tall pairs'}, status, view.box, weightTable.box),
    lists.box));
  layout();

  drawThumbs(table, cells, count);
  new ResizeObserver(() => paint()).observe(view.box);
  return refresh;
}

// Lists of the largest weights from and to the active token
function attentionLists(tokens) {
  const count = tokens.length;
  const box = el('div', {class: 'card lists stay', id: 'looks'});
  const largest = (kept, weightOf) => kept.map((k) => [k, weightOf(k)])
    .sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 6);
  const list = (rows, className) => bars(rows.map(([k, weight]) => ({
    name: tokenText(tokens[k]), label: percent(weight), length: weight,
    value: weight})), className);
  const brief = (rows) => rows.slice(0, 3).map(([k, weight]) =>
    tokenText(tokens[k]) + ' ' + percent(weight)).join(', ');

  function update({active, mean, kept, aloud}) {
    box.classList.toggle('screen', active === null);
    if (active === null) {
      setContents(box, el('p', {class: 'hint screen'}, 'Point at a token, ' +
        'or move to it with Tab and the arrow keys, to see what it attends ' +
        'to and what attends to it. A click keeps the token chosen.'));
      return;
    }
    const name = tokenText(tokens[active]);
    const to = largest(kept, (k) => mean[active * count + k]);
    const from = largest(kept, (k) => mean[k * count + active]);
    setContents(box, el('div', {class: 'looks'},
      el('div', null, el('h3', {dir: 'auto'}, name + ' attends to'),
        list(to)),
      el('div', null, el('h3', {dir: 'auto'}, name + ' is attended to by'),
        list(from, 'in'))));
    if (aloud) {
      announce(name + ' attends to ' + brief(to) + '; is attended to by ' +
        brief(from));
    }
  }
  return {box, update};
}

// All weights as numbers. The table is filled when the reader opens it
function attentionTable(tokens) {
  const count = tokens.length;
  let mean, kept;
  const box = el('details', {id: 'weights'}, el('summary', null,
    'The weights as a table'));
  box.addEventListener('toggle', () => box.open && fill());

  function fill() {
    const old = box.querySelector('.scroll');
    if (old) old.remove();
    if (count > MOST_IN_TABLE) {
      box.append(el('p', {class: 'scroll'}, 'The text has ' + count +
        ' tokens; the table holds at most ' + MOST_IN_TABLE + '.'));
      return;
    }
    box.append(el('div', {class: 'scroll', tabindex: 0, role: 'group',
      'aria-label': 'Attention weights in percent'},
    el('table', {class: 'numbers'},
      el('tr', null, el('th', {scope: 'col'}, 'attends to \u2192'), kept.map(
        (j) => el('th', {scope: 'col', dir: 'auto'}, tokenText(tokens[j])))),
      kept.map((i) => el('tr', null, el('th', {scope: 'row', dir: 'auto'},
        tokenText(tokens[i])), kept.map((j) => el('td', {'data-value':
          mean[i * count + j]}, (100 * mean[i * count + j]).toFixed(1))))))));
  }
  function update(newMean, newKept) {
    [mean, kept] = [newMean, newKept];
    if (box.open) fill();
  }
  return {box, update};
}

addTab({key: 'attention', title: 'Attention', draw: drawAttention,
  perText: true});
