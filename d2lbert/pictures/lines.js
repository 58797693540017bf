// The tokens of a text with their attention: two columns joined by lines, or
// a paragraph in shades. Each of these views has a box and three functions.
// layout(kept) shows the tokens with indices in kept. mark() highlights the
// chosen token. paint() draws, and returns a sentence about what is drawn.
//
// active: index of the token that is pointed at or chosen, or null.
// pinned: index of the token that was clicked, or null.
// mean: weights (T, T), row by row, averaged over the picked heads.
// maps: attention maps, one for each head that is drawn: [weights, colour].

// The largest number of lines that are drawn at once
const MOST_LINES = 6000;

// A button for token t of `count` tokens. It calls on.point(t), on.leave(),
// on.focus(t) and on.press(t)
function tokenButton(token, t, count, on, attributes, ...inner) {
  return el('button', {type: 'button', 'data-token': t,
    title: readAs(token) && unknownTitle(token),
    'aria-label': tokenText(token) + ', token ' + (t + 1) + ' of ' + count,
    onmouseenter: () => on.point(t), onmouseleave: () => on.leave(),
    onfocus: () => on.focus(t), onclick: () => on.press(t), ...attributes},
  ...inner);
}

function markButton(button, t, {active, pinned}) {
  button.classList.toggle('active', t === active);
  button.classList.toggle('pinned', t === pinned);
  button.setAttribute('aria-pressed', String(t === pinned));
}

// The tokens in two columns, with lines from those that attend to those that
// are attended to
function twoColumns(tokens, on) {
  const count = tokens.length, height = count > 40 ? 24 : 28;
  const canvas = el('canvas', {'aria-hidden': 'true'});
  const sides = ['left', 'right'].map((side) => tokens.map((token, t) =>
    tokenButton(token, t, count, on, {class: ['row', token.special &&
      'special', readAs(token) && 'unknown'].filter(Boolean).join(' '),
    'data-side': side}, el('bdi', {class: 'name'}, tokenText(token)),
    el('span', {class: 'share'}))));
  const columns = ['from', 'to'].map((name, k) => el('div', {
    class: 'side ' + (k ? 'right' : 'left'), role: 'group', 'aria-label':
      k ? 'Tokens that are attended to' : 'Tokens that attend'},
  el('div', {class: 'head'}, name), sides[k]));
  const box = el('div', {class: 'pair'}, canvas, columns[0], el('div'),
    columns[1]);
  box.style.setProperty('--row', height + 'px');
  sides.forEach((side) => roving(side));

  function layout(kept) {
    sides.forEach((side) => side.forEach((row, t) => {
      row.hidden = !kept.includes(t);
      row.style.display = row.hidden ? 'none' : '';
    }));
  }
  function mark({active, pinned, mean}) {
    sides.forEach((side, isRight) => side.forEach((row, t) => {
      markButton(row, t, {active, pinned});
      row.lastChild.textContent = active === null ? '' : wholePercent(isRight
        ? mean[active * count + t] : mean[t * count + active]);
    }));
  }
  function paint({maps, kept, active, least}) {
    const [drawn, passed] = drawLines(canvas, {maps, count, kept, height,
      active, least, width: box.clientWidth,
      left: columns[0].offsetWidth + 2,
      right: box.clientWidth - columns[1].offsetWidth - 2});
    if (active !== null) {
      return formatNumber(drawn) + ' lines from or to ' +
        tokenText(tokens[active]) + ', of at least ' + percent(least);
    }
    const lines = maps.length > 1 ? ' lines of ' + maps.length + ' heads'
      : ' lines';
    return drawn < passed
      ? formatNumber(drawn) + ' strongest of ' + formatNumber(passed) + lines
      : formatNumber(drawn) + ' of ' +
        formatNumber(maps.length * kept.length ** 2) + lines;
  }
  return {box, layout, mark, paint};
}

// A long text as a paragraph; tokens with more attention have a stronger shade
function shadedText(tokens, on) {
  const count = tokens.length;
  const buttons = tokens.map((token, t) => tokenButton(token, t, count, on,
    {dir: 'auto', class: readAs(token) ? 'unknown' : null},
    el('span', null, tokenText(token))));
  const box = el('div', {class: 'flow shaded', role: 'group', 'aria-label':
    'Tokens of the text, shaded by attention'}, buttons);
  roving(buttons);

  function layout(kept) {
    buttons.forEach((button, t) => {
      button.hidden = !kept.includes(t);
      button.style.display = button.hidden ? 'none' : '';
    });
  }
  function mark({active, pinned, mean, kept}) {
    const weightOf = (k) => active === null
      ? kept.reduce((sum, i) => sum + mean[i * count + k], 0) / kept.length
      : mean[active * count + k];
    const weights = new Map(kept.map((k) => [k, weightOf(k)]));
    const most = Math.max(...weights.values()) || 1;
    buttons.forEach((button, t) => {
      markButton(button, t, {active, pinned});
      button.style.setProperty('--share', ((weights.get(t) || 0) / most)
        .toFixed(3));
    });
  }
  function paint({active}) {
    return active === null
      ? 'Stronger shades: tokens that get more attention from all tokens.'
      : 'Stronger shades: tokens to which \u201c' + tokenText(tokens[active]) +
        '\u201d attends more.';
  }
  return {box, layout, mark, paint};
}

// The position of the slider until the reader moves it: about two lines for
// each token, so that the eye can follow them. If all weights are equal, all lines
// are drawn. heads: weights of each head
function firstFloor(heads, count, kept) {
  const all = new Float32Array(heads.length * kept.length ** 2);
  let next = 0;
  for (const weights of heads) {
    for (const i of kept) {
      for (const j of kept) all[next++] = weights[i * count + j];
    }
  }
  all.sort();
  const least = all[Math.max(0, all.length - Math.ceil(2.2 * kept.length))];
  const position = Math.ceil(1000 * Math.sqrt(least || 0)) / 10;
  // Rounding up must not exclude the largest weight
  return (position / 100) ** 2 <= all[all.length - 1] ? position
    : position - 0.1;
}

// Draw a line for each weight of the maps that is at least `least`. If a token
// is active, draw only lines from and to this token. Returns the number of
// lines that are drawn, at most MOST_LINES, and the number of such weights
function drawLines(canvas, {maps, count, kept, height, active, least,
  width, left, right}) {
  const tall = height * kept.length;
  if (!width || !tall) return [0, 0];
  // Browsers limit the size of a canvas
  const scale = Math.min(devicePixelRatio || 1, 16000 / tall,
    Math.sqrt(12e6 / (width * tall)));
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(tall * scale);
  canvas.style.width = width + 'px';
  canvas.style.height = tall + 'px';
  const pen = canvas.getContext('2d');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  const bend = (right - left) / 2, inColour = colour('in');
  let drawn = 0, passed = 0;
  maps.forEach(([weights, ink], at) => {
    // Lines of several heads run side by side
    const shift = (at - (maps.length - 1) / 2) * Math.min(2.2, 14 /
      maps.length);
    const found = [];
    kept.forEach((i, y) => kept.forEach((j, z) => {
      const weight = weights[i * count + j];
      if (weight >= least && (active === null || active === i ||
          active === j)) found.push([weight, y, z, i]);
    }));
    passed += found.length;
    pen.setLineDash(DASHES[at % 4]);
    const most = Math.floor(MOST_LINES / maps.length);
    if (found.length > most) {
      found.sort((a, b) => b[0] - a[0]);
      found.length = most;
    }
    drawn += found.length;
    for (const [weight, y, z, i] of found) {
      pen.strokeStyle = active === null || i === active ? ink : inColour;
      pen.globalAlpha = 0.12 + 0.88 * opacityOf(weight);
      pen.lineWidth = 0.6 + 3.4 * weight;
      const from = (y + 0.5) * height + shift;
      const to = (z + 0.5) * height + shift;
      pen.beginPath();
      pen.moveTo(left, from);
      pen.bezierCurveTo(left + bend, from, right - bend, to, right, to);
      pen.stroke();
    }
  });
  return [drawn, passed];
}
