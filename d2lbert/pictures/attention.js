// Attention: which token looks at which, in which layer and head

// Of a token that is looked at, lines from so much on
const FEW = 0.005;

const attention = {mode: 'one', picked: new Set(['0,0']), hides: false,
  floor: null, active: null, pinned: null};

function drawAttention(panel) {
  const tokens = text().tokens, count = tokens.length;
  const state = attention, high = count > 40 ? 24 : 28;
  state.active = state.pinned = null;
  let mean, kept, suited;

  // Controls
  const floorSaid = el('output', {for: 'floor'});
  const floor = el('input', {type: 'range', id: 'floor', min: 0, max: 100,
    step: 1, value: state.floor || 0, oninput: () => {
      state.floor = +floor.value;
      paint();
    }});
  const modes = radios('mode', 'Show', [['one', 'one head'],
    ['several', 'several'], ['mean', 'their mean']], state.mode, (mode) => {
    state.mode = mode;
    if (mode === 'one') pick(pickedHeads().slice(0, 1));
    else refresh();
  });
  const special = data.special.join(' and ');
  const controls = el('div', {class: 'controls'}, modes,
    el('div', {class: 'slide'}, el('label', {for: 'floor'}, 'Lines from'),
      floor, floorSaid),
    el('label', {class: 'choice'}, el('input', {type: 'checkbox', id:
      'hide', checked: state.hides, onchange: (event) => {
      state.hides = event.target.checked;
      layout();
    }}), 'hide ' + special));

  const {table, buttons, cells} = headGrid(press, several);
  const picked = el('ul', {class: 'keys picked', 'aria-label': 'Heads shown'});

  function press(head) {
    const key = head.join();
    if (state.mode === 'one') return pick([head]);
    if (!state.picked.has(key)) state.picked.add(key);
    else if (state.picked.size > 1) state.picked.delete(key);
    refresh();
  }
  function several(wanted) {
    if (state.mode === 'one') {
      state.mode = 'mean';
      modes.querySelector('[value="mean"]').checked = true;
    }
    pick(cells.filter(([l, h]) => wanted(l, h)));
  }
  function pick(heads) {
    state.picked = new Set(heads.map(([l, h]) => l + ',' + h));
    refresh();
  }

  // The two columns of tokens, and lines between them
  const canvas = el('canvas', {'aria-hidden': 'true'});
  const sides = ['left', 'right'].map((side) => tokens.map((token, t) => {
    const row = el('button', {type: 'button', class: ['row', token.special &&
      'special', readAs(token) && 'unknown'].filter(Boolean).join(' '),
    'data-token': t, 'data-side': side, title: readAs(token) &&
      'not in the vocabulary: read as ' + readAs(token), 'aria-label':
      shown(token) + ', token ' + (t + 1) + ' of ' + count},
    el('bdi', {class: 'name'}, shown(token)), el('span', {class: 'share'}));
    row.addEventListener('mouseenter', () => activate(t));
    row.addEventListener('mouseleave', () => activate(state.pinned));
    row.addEventListener('focus', () => activate(t, true));
    row.addEventListener('click', () => {
      state.pinned = state.pinned === t ? null : t;
      activate(state.pinned === null ? t : state.pinned, true);
    });
    return row;
  }));
  const columns = ['looks', 'is looked at'].map((name, k) =>
    el('div', {class: 'side ' + (k ? 'right' : 'left'), role: 'group',
      'aria-label': 'Tokens, the one that ' + name},
    el('div', {class: 'head'}, k ? 'is looked at' : 'looks'), sides[k]));
  const pair = el('div', {class: 'pair'}, canvas, columns[0], el('div'),
    columns[1]);
  pair.style.setProperty('--row', high + 'px');
  pair.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return;
    state.pinned = null;
    activate(null);
  });
  pair.addEventListener('focusout', (event) => {
    if (!pair.contains(event.relatedTarget)) activate(state.pinned);
  });
  sides.forEach((side) => roving(side));
  const countSaid = el('p', {class: 'soft', id: 'lines'});
  const looks = el('div', {class: 'card lists stay', id: 'looks'});

  function layout() {
    kept = tokens.map((token, t) => t).filter((t) =>
      !(state.hides && tokens[t].special));
    sides.forEach((side) => side.forEach((row, t) => {
      row.hidden = !kept.includes(t);
      row.style.display = row.hidden ? 'none' : '';
    }));
    if (!kept.includes(state.pinned)) state.pinned = null;
    if (!kept.includes(state.active)) state.active = null;
    refresh();
  }

  function refresh() {
    buttons.forEach((button) => button.setAttribute('aria-pressed',
      String(state.picked.has(button.dataset.head))));
    const heads = pickedHeads();
    mean = meanWeights(heads);
    suited = suitedFloor(mean, count, kept);
    const shades = SHADES[document.documentElement.dataset.theme];
    const each = state.mode === 'several';
    clear(picked, heads.slice(0, 8).map((head, k) => el('li', null,
      each ? key(shades[k % shades.length], k) : key(colour('out'), 0),
      headName(head))), heads.length > 8 ? el('li', null, 'and ' +
      (heads.length - 8) + ' more') : []);
    activate(state.active);
    if (details.open) fillTable();
  }

  function activate(t, aloud) {
    state.active = t;
    sides.forEach((side, right) => side.forEach((row, k) => {
      row.classList.toggle('active', k === t);
      row.classList.toggle('pinned', k === state.pinned);
      row.setAttribute('aria-pressed', String(k === state.pinned));
      row.lastChild.textContent = t === null ? '' : brief(right
        ? mean[t * count + k] : mean[k * count + t]);
    }));
    tell(t, aloud);
    paint();
  }

  function best(weightOf) {
    return kept.map((k) => [k, weightOf(k)]).sort((a, b) => b[1] - a[1] ||
      a[0] - b[0]).slice(0, 6);
  }

  function tell(t, aloud) {
    looks.classList.toggle('screen', t === null);
    if (t === null) {
      clear(looks, el('p', {class: 'hint screen'}, 'Point at a token, or go ' +
        'to it by Tab and the arrow keys: this shows what it looks at, and ' +
        'what looks at it. A click keeps it.'));
      return;
    }
    const name = shown(tokens[t]);
    const out = best((k) => mean[t * count + k]);
    const into = best((k) => mean[k * count + t]);
    const list = (rows, className) => bars(rows.map(([k, weight]) => ({
      name: shown(tokens[k]), said: percent(weight), length: weight,
      value: weight})), className);
    clear(looks, el('div', {class: 'looks'},
      el('div', null, el('h3', {dir: 'auto'}, name + ' looks at'),
        list(out)),
      el('div', null, el('h3', {dir: 'auto'}, name + ' is looked at by'),
        list(into, 'in'))));
    if (aloud) {
      const few = (rows) => rows.slice(0, 3).map(([k, weight]) =>
        shown(tokens[k]) + ' ' + percent(weight)).join(', ');
      say(name + ' looks at ' + few(out) + '; is looked at by ' + few(into));
    }
  }

  function paint() {
    if (state.floor === null) floor.value = suited;
    const least = (floor.value / 100) ** 2;
    floorSaid.textContent = percent(least);
    floor.setAttribute('aria-valuetext', percent(least));
    const shades = SHADES[document.documentElement.dataset.theme];
    // A token that is looked at has its lines in the colours of its lists
    const heads = state.mode === 'several' && state.active === null
      ? pickedHeads().map((head, k) => [headWeights(...head),
        shades[k % shades.length]]) : [[mean, colour('out')]];
    const [drawn, passed] = drawLines(canvas, {heads, count, kept, high,
      active: state.active, least: state.active === null ? least : FEW,
      width: pair.clientWidth, left: columns[0].offsetWidth + 2,
      right: pair.clientWidth - columns[1].offsetWidth - 2});
    countSaid.textContent = state.active !== null
      ? counted(drawn) + ' lines from or to ' + shown(tokens[state.active]) +
        ', of at least ' + percent(FEW)
      : drawn < passed ? 'the strongest ' + counted(drawn) + ' of ' +
        counted(passed) + ' lines' : counted(drawn) + ' of ' +
        counted(heads.length * kept.length ** 2) + ' lines';
  }

  // All numbers
  const details = el('details', {id: 'weights'}, el('summary', null,
    'The weights as a table'));
  details.addEventListener('toggle', () => details.open && fillTable());
  function fillTable() {
    const old = details.querySelector('.scroll');
    if (old) old.remove();
    if (count > 80) {
      details.append(el('p', {class: 'scroll'}, 'The text has ' + count +
        ' tokens: a table is made of up to 80.'));
      return;
    }
    details.append(el('div', {class: 'scroll', tabindex: 0, role: 'group',
      'aria-label': 'Attention weights in percent'},
    el('table', {class: 'numbers'},
      el('tr', null, el('th', {scope: 'col'}, 'looks at \u2192'), kept.map(
        (j) => el('th', {scope: 'col', dir: 'auto'}, shown(tokens[j])))),
      kept.map((i) => el('tr', null, el('th', {scope: 'row', dir: 'auto'},
        shown(tokens[i])), kept.map((j) => el('td', {'data-value':
          mean[i * count + j]}, (100 * mean[i * count + j]).toFixed(1))))))));
  }

  panel.append(el('p', {class: 'hint'}, 'Each token gathers what it needs ' +
    'from the others: a head gives each of them a weight, and the weights ' +
    'of a token sum to 100 %. The grid has a picture of every head, row for ' +
    'row the token that looks, on one scale for all heads; the numbers at ' +
    'its edges take a whole layer or column.'), controls,
  el('div', {class: 'attention'},
    el('div', {class: 'card heads'}, el('h3', null, 'Layers and heads'),
      table, shadeKey(), picked),
    el('div', {class: 'card tall pairs'}, countSaid, pair, details),
    looks));
  layout();

  drawThumbs(table, cells, count);
  new ResizeObserver(() => paint()).observe(pair);
  return refresh;
}

addTab('attention', 'Attention', drawAttention, true);
