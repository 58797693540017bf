// The data of the page: see page_data in show.py
const data = JSON.parse(document.getElementById('data').textContent);
// text: index of the chosen text. tab: key of the open tab
const page = {text: 0, tab: null, printing: false};

// Make an element. Strings in it become text, never markup.
function el(name, attributes, ...inner) {
  const svg = ['svg', 'path', 'circle', 'rect', 'line', 'text', 'g', 'title',
    'polygon', 'polyline'].includes(name);
  const made = svg
    ? document.createElementNS('http://www.w3.org/2000/svg', name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...inner.flat(Infinity).filter((one) => one !== null));
  return made;
}

const byId = (id) => document.getElementById(id);
// Replace the contents of an element
const setContents = (node, ...inner) =>
  node.replaceChildren(...inner.flat(Infinity));
const formatNumber = (number) => number.toLocaleString('en');
// Let screen readers read a text aloud
const announce = (text) => { byId('live').textContent = text; };

function percent(share) {
  const value = 100 * share;
  if (value >= 99.95) return '100 %';
  if (value >= 10) return value.toFixed(1) + ' %';
  if (value >= 0.01) return value.toFixed(2) + ' %';
  if (value >= 1e-7) return value.toFixed(1 - Math.floor(
    Math.log10(value))) + ' %';
  return value > 0 ? 'almost 0 %' : '0 %';
}

const wholePercent = (share) => share >= 0.0095
  ? Math.round(100 * share) + ' %' : share > 0 ? '< 1 %' : '0 %';

// The characters that Python counts; JavaScript counts UTF-16 code units
function characters(text) { return Array.from(text); }

// Tokens

// A token as the text writes it, for example with capital letters
function tokenText(token) {
  if (token.special || !token.written) return token.token;
  return token.token.startsWith('##') && !token.written.startsWith('##')
    ? '##' + token.written : token.written;
}

// The token that the model reads in place of an unknown word, or null
function readAs(token) {
  return !token.special && unknown.has(token.token) &&
    token.written !== token.token ? token.token : null;
}
const unknown = new Set(['<unk>', '[UNK]']);
const unknownTitle = (token) => 'not in the vocabulary: read as ' +
  readAs(token);

const currentText = () => data.texts[page.text];
const wholeText = (one) => one.pair === null ? one.text
  : one.text + ' | ' + one.pair;

// Dashes, so that lines also differ without colours
const DASHES = [[], [7, 4], [2, 4], [9, 3, 2, 3]];

// A short line for a legend; k selects the dashes of the line
function legendLine(stroke, k, width) {
  return el('svg', {viewBox: '0 0 26 14', 'aria-hidden': 'true'}, el('line', {
    x1: 0, x2: 26, y1: 7, y2: 7, stroke, 'stroke-width': width || 2.2,
    'stroke-dasharray': DASHES[k % 4].join(' ')}));
}

// Let arrow keys move the focus among items. Tab reaches only one item.
// columns: the number of items in a row, if the items form a grid
function roving(items, columns) {
  let at = Math.max(0, items.findIndex((one) => one.tabIndex === 0));
  items.forEach((one, k) => { one.tabIndex = k === at ? 0 : -1; });
  const go = (k) => {
    if (k < 0 || k >= items.length) return;
    items[at].tabIndex = -1;
    at = k;
    items[at].tabIndex = 0;
    items[at].focus();
  };
  items.forEach((one, k) => {
    one.addEventListener('focus', () => {
      items[at].tabIndex = -1;
      at = k;
      one.tabIndex = 0;
    });
    one.addEventListener('keydown', (event) => {
      const rtl = getComputedStyle(one.parentNode).direction === 'rtl';
      const step = {ArrowRight: rtl ? -1 : 1, ArrowLeft: rtl ? 1 : -1,
        ArrowDown: columns || 1, ArrowUp: -(columns || 1)}[event.key];
      const end = {Home: 0, End: items.length - 1}[event.key];
      if (step === undefined && end === undefined) return;
      event.preventDefault();
      go(step === undefined ? end : at + step);
    });
  });
}

// The tokens of the current text as buttons. allowed(t): true if token t can
// be pressed. chosen(t, buttons) is called after token t is pressed
function flow(label, allowed, chosen) {
  const textData = currentText();
  const buttons = textData.tokens.map((token, t) => {
    const off = !allowed(t);
    return el('button', {type: 'button', dir: 'auto', 'data-token': t,
      'aria-pressed': off ? null : 'false',
      'aria-disabled': off ? 'true' : null,
      class: readAs(token) ? 'unknown' : null,
      title: readAs(token) && unknownTitle(token),
      onclick: off ? null : () => press(t)}, tokenText(token));
  });
  const press = (t) => {
    buttons.forEach((button, k) => {
      if (allowed(k)) button.setAttribute('aria-pressed', String(k === t));
    });
    chosen(t, buttons);
  };
  // An invisible copy of the text. The buttons are laid out in its direction
  const written = el('span', {dir: 'auto', class: 'unseen',
    'aria-hidden': 'true'}, wholeText(textData));
  const group = el('div', {class: 'flow', role: 'group',
    'aria-label': label}, buttons);
  const box = el('div', null, written, group);
  requestAnimationFrame(() => {
    group.dir = getComputedStyle(written).direction;
  });
  roving(buttons);
  return {box, buttons, press};
}

// A bar for each row {name, label, length from 0 to 1, value, own}. own: true
// for the token of the text itself, whose name is bold
function bars(rows, className) {
  return el('ol', {class: 'bars ' + (className || '')}, rows.map((row) =>
    el('li', {class: row.own ? 'own' : null, 'data-value': row.value},
      el('span', {class: 'name', dir: 'auto', title: row.name}, row.name),
      el('span', {class: 'value'}, row.label),
      el('span', {class: 'bar', 'aria-hidden': 'true'}, (() => {
        const bar = el('span');
        bar.style.width = (100 * row.length) + '%';
        return bar;
      })()))));
}

// A slider over the layers, 0 for the embeddings. moved(layer) is called when
// the slider moves
function layerSlider(id, value, moved) {
  const named = (l) => l === 0 ? 'embeddings' : 'layer ' + l + ' of ' +
    data.layers;
  const output = el('output', {for: id}, named(value));
  const input = el('input', {type: 'range', id, min: 0, max: data.layers,
    step: 1, value, 'aria-valuetext': named(value)});
  input.addEventListener('input', () => {
    output.textContent = named(+input.value);
    input.setAttribute('aria-valuetext', named(+input.value));
    moved(+input.value);
  });
  return el('div', {class: 'slide'}, el('label', {for: id}, 'Layer'), input,
    output);
}

function radios(group, label, choices, value, moved) {
  return el('fieldset', null, el('legend', null, label),
    choices.map(([key, name]) => el('label', {class: 'choice'},
      el('input', {type: 'radio', name: group, value: key,
        checked: key === value, onchange: () => moved(key)}), name)));
}

// Tabs. draw(panel) fills the panel when the tab is first opened, and again
// for another text if perText. draw returns a function that draws once more,
// for example in other colours, or null. missing() returns the reason why the
// tab is empty, or null. stale: true if the panel must be filled again

const tabs = [];

function addTab({key, title, draw, perText = false, missing = () => null}) {
  tabs.push({key, title, draw, perText, reason: missing(), stale: true});
}

function open(key, focus) {
  page.tab = key;
  for (const tab of tabs) {
    const on = tab.key === key;
    tab.button.setAttribute('aria-selected', String(on));
    tab.button.tabIndex = on ? 0 : -1;
    tab.panel.hidden = !on;
    if (on) {
      if (focus) tab.button.focus();
      tab.button.scrollIntoView({block: 'nearest', inline: 'nearest'});
      fill(tab);
      if (tab.redraw) tab.redraw();
    }
  }
}

function fill(tab) {
  if (!tab.stale) return;
  tab.stale = false;
  setContents(tab.panel, el('h2', {class: 'printed'}, tab.title));
  if (tab.reason === null) tab.redraw = tab.draw(tab.panel) || null;
  else tab.panel.append(el('p', {class: 'note'}, tab.reason));
}

function makeTabs() {
  for (const tab of tabs) {
    tab.button = el('button', {type: 'button', role: 'tab', id: 'tab-' +
      tab.key, 'aria-controls': 'panel-' + tab.key, title: tab.reason,
    class: tab.reason === null ? null : 'empty', onclick: () =>
      open(tab.key)}, tab.title, tab.reason === null ? null
      : el('small', null, ' (none)'));
    tab.panel = el('section', {role: 'tabpanel', id: 'panel-' + tab.key,
      'aria-labelledby': 'tab-' + tab.key, tabindex: 0});
    tab.panel.hidden = true;
    byId('tabs').append(tab.button);
    byId('main').append(tab.panel);
  }
  byId('tabs').addEventListener('keydown', (event) => {
    const at = tabs.findIndex((tab) => tab.key === page.tab);
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0,
      End: tabs.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    open(tabs[(to + tabs.length) % tabs.length].key, true);
  });
}

// Colours

const COLOURS = {
  light: ['#1c62a8', '#a84a12', '#2e7d32', '#8e3a9d', '#7a6000', '#00767d',
    '#b3265b', '#4a4f57'],
  dark: ['#82b9f2', '#f0a468', '#8fd694', '#dba0e8', '#e3cc62', '#6fd6dd',
    '#ff9dbd', '#c3c9d1']};

function setTheme(choice) {
  const dark = choice === 'dark' || choice === 'auto' &&
    matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  redraw();
}

function redraw() {
  for (const tab of tabs) {
    if (tab.redraw && !tab.stale && !tab.panel.hidden) tab.redraw();
  }
}

// The colour of line or mark k of several
const colourOf = (k) => {
  const colours = COLOURS[document.documentElement.dataset.theme];
  return colours[k % colours.length];
};

// A colour of page.css, for example colour('ink') of --ink
const colour = (name) => getComputedStyle(document.documentElement)
  .getPropertyValue('--' + name).trim();

function makeTheme() {
  const buttons = [...document.querySelectorAll('.theme button')];
  let choice = 'auto';
  const choose = (wanted) => {
    choice = wanted;
    buttons.forEach((one) => one.setAttribute('aria-pressed',
      String(one.dataset.choice === wanted)));
    setTheme(wanted);
  };
  buttons.forEach((one) => one.addEventListener('click', () =>
    choose(one.dataset.choice)));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () =>
    setTheme(choice));
  setTheme(choice);
  addEventListener('beforeprint', () => {
    document.documentElement.dataset.theme = 'light';
    page.printing = true;
    for (const tab of tabs) {
      tab.panel.hidden = false;
      fill(tab);
      if (tab.redraw) tab.redraw();
    }
  });
  addEventListener('afterprint', () => {
    page.printing = false;
    open(page.tab);
    setTheme(choice);
  });
}

// The head of the page

function makeHead() {
  const kind = {run: 'a run of d2lbert pretrain',
    released: 'a released model', 'in memory': 'without a folder',
    'fine-tuned': 'a model fine-tuned for ' + data.task};
  byId('facts').textContent = [kind[data.kind],
    data.layers + (data.layers === 1 ? ' layer of ' : ' layers of ') +
    data.heads + (data.heads === 1 ? ' head' : ' heads'),
    'vectors of ' + formatNumber(data.hiddens),
    formatNumber(data.tokens) + ' tokens in the vocabulary',
    formatNumber(data.parameters) + ' parameters'].join(' \u00b7 ');
  byId('made').textContent = 'Made by d2lbert ' + data.version +
    '. This file holds everything that the page shows.';
  const prediction = el('div', {id: 'prediction'});
  // The text on a printed page, which has no list to choose from
  const printed = el('span', {class: 'printed-text', dir: 'auto'});
  const showText = () => {
    printed.textContent = wholeText(currentText());
    setContents(prediction, currentText().prediction ? el('p', {dir: 'auto'},
      'Prediction: ' + currentText().prediction.slice(0, 60).map(
        ([name, value]) => name + ' ' +
          (typeof value === 'number' ? percent(value) : value))
        .join(' \u00b7 ')) : []);
  };
  if (data.texts.length > 1) {
    byId('chooser').append(el('label', {for: 'text'}, 'Text'),
      el('select', {id: 'text', dir: 'auto', onchange: (event) => {
        page.text = +event.target.value;
        tabs.forEach((tab) => { tab.stale = tab.stale || tab.perText; });
        showText();
        open(page.tab);
      }}, data.texts.map((one, k) => el('option', {value: k},
        wholeText(one)))), printed);
  } else {
    byId('chooser').append(el('span', {dir: 'auto'},
      wholeText(currentText())));
  }
  byId('chooser').append(prediction);
  showText();
}
