// Training: the losses, settings and log of a run

// A chart of lines {name, steps, values, faint}
function chart(title, lines) {
  const wide = 420, high = 256, left = 48, right = 14, top = 10, bottom = 40;
  const xs = lines.flatMap((line) => line.steps);
  const ys = lines.flatMap((line) => line.values);
  const ticksX = ticks(Math.min(...xs), Math.max(...xs), 5, true);
  const ticksY = ticks(Math.min(...ys), Math.max(...ys), 5);
  const [x0, x1] = [Math.min(...xs, ticksX[0]), Math.max(...xs)];
  const [y0, y1] = [ticksY[0], ticksY[ticksY.length - 1]];
  const X = (x) => left + (wide - left - right) * (x1 > x0
    ? (x - x0) / (x1 - x0) : 0.5);
  const Y = (y) => high - bottom - (high - bottom - top) * (y1 > y0
    ? (y - y0) / (y1 - y0) : 0.5);
  const drawn = lines.map((line, k) => {
    const stroke = line.faint ? 'var(--soft)' : colourOf(k);
    const points = line.steps.map((x, i) => X(x).toFixed(1) + ',' +
      Y(line.values[i]).toFixed(1));
    return [el('polyline', {points: points.join(' '), fill: 'none', stroke,
      'stroke-width': line.faint ? 1.2 : 2.2, 'stroke-dasharray':
        DASHES[k % 4].join(' '), 'stroke-linejoin': 'round',
      opacity: line.faint ? 0.75 : 1}),
    ...points.length === 1 || points.length <= 40 && !line.faint
      ? points.map((xy) => {
        const [cx, cy] = xy.split(',');
        return el('circle', {cx, cy, r: 2.6, fill: stroke});
      }) : []];
  });
  const last = lines.map((line) => line.name + ' ' +
    line.values[line.values.length - 1].toPrecision(4)).join(', ');
  return el('figure', {class: 'card', style: 'margin:0'},
    el('h3', null, title),
    el('ul', {class: 'keys'}, lines.map((line, k) => el('li', null,
      legendLine(line.faint ? 'var(--soft)' : colourOf(k), k, line.faint
        ? 1.2 : 2.2), line.name + ', last ' +
      line.values[line.values.length - 1].toPrecision(4)))),
    el('svg', {viewBox: [0, 0, wide, high].join(' '), role: 'img',
      'aria-label': title + ' over ' + formatNumber(x1) +
        ' steps: at the end ' + last},
    ticksY.map((y) => [el('line', {class: 'axis', x1: left, x2: wide - right,
      y1: Y(y), y2: Y(y)}), el('text', {x: left - 7, y: Y(y) + 4,
      'text-anchor': 'end'}, tickName(y, ticksY))]),
    ticksX.filter((x) => x >= x0 && x <= x1).map((x) => el('text', {
      x: X(x), y: high - bottom + 21,
      'text-anchor': 'middle'}, formatNumber(x))),
    el('text', {x: (left + wide - right) / 2, y: high - 1, 'text-anchor':
      'middle'}, 'step'), drawn));
}

// Round numbers at equal distances, from `low` or less to `high` or more, with
// at most about `most` intervals. whole: true for whole numbers only
function ticks(low, high, most, whole) {
  const rough = (high - low) / most || Math.abs(high) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const round = [1, 2, 5, 10].map((k) => k * power).find((distance) =>
    distance >= rough * 0.999);
  const step = whole ? Math.max(1, round) : round;
  const found = [];
  for (let k = Math.floor(low / step + 1e-9); k * step < high + step * 0.999;
    k++) found.push(+(k * step).toPrecision(12));
  return found;
}

function tickName(value, all) {
  const step = all.length > 1 ? Math.abs(all[1] - all[0]) : Math.abs(value);
  return step >= 1 ? formatNumber(value) : value.toFixed(Math.min(8, Math.ceil(
    -Math.log10(step) - 1e-9)));
}

function drawTraining(panel) {
  const run = data.training;
  const plots = el('div', {class: 'charts'});
  // faint: thin and grey, for the noisy losses of single steps
  const line = (name, [steps, values], faint) => ({name, steps, values,
    faint});
  const heldOut = run.held_out;
  function build() {
    const found = [];
    for (const [name, [each, mean]] of Object.entries(run.losses)) {
      const lines = [];
      if (mean[0].length) lines.push(line('mean since step 1', mean));
      if (heldOut[name + '_loss']) {
        lines.push(line('held out', heldOut[name + '_loss']));
      }
      lines.push(line('each step', each, true));
      found.push(chart((name.length < 4 ? name.toUpperCase() : name) +
        ' loss', lines));
    }
    const rates = Object.keys(heldOut).filter((name) =>
      name.includes('accuracy'));
    if (rates.length) {
      found.push(chart('Held-out accuracy', rates.map((name) => line(
        name.replace(/_/g, ' '), heldOut[name]))));
    }
    for (const name of Object.keys(heldOut)) {
      if (!name.includes('accuracy') && !name.endsWith('_loss') &&
          name !== 'unknown_share') {
        found.push(chart('Held-out ' + name.replace(/_/g, ' '),
          [line(name.replace(/_/g, ' '), heldOut[name])]));
      }
    }
    setContents(plots, found);
  }
  build();
  const columns = [];
  for (const [name, [each, mean]] of Object.entries(run.losses)) {
    columns.push([name + ' loss', each]);
    if (mean[0].length) columns.push([name + ', mean', mean]);
  }
  for (const [name, found] of Object.entries(heldOut)) {
    columns.push(['held-out ' + name.replace(/_/g, ' '), found]);
  }
  const steps = [...new Set(columns.flatMap(([, found]) => found[0]))]
    .sort((a, b) => a - b);
  const details = el('details', null, el('summary', null,
    'The numbers as a table'));
  details.addEventListener('toggle', () => {
    if (!details.open || details.children.length > 1) return;
    const maps = columns.map(([, [at, values]]) => new Map(at.map((step, k) =>
      [step, values[k]])));
    const stride = Math.ceil(steps.length / 1000);
    details.append(el('div', {class: 'scroll', tabindex: 0, role: 'group',
      'aria-label': 'Losses and figures'}, el('table', {class: 'numbers'},
      el('tr', null, el('th', {scope: 'col'}, 'step'), columns.map(([name]) =>
        el('th', {scope: 'col'}, name))),
      steps.filter((step, k) => k % stride === 0 || k === steps.length - 1)
        .map((step) => el('tr', null,
          el('th', {scope: 'row'}, formatNumber(step)),
          maps.map((map) => el('td', null, map.has(step)
            ? map.get(step).toPrecision(5) : '')))))));
  });
  panel.append(plots,
    el('div', {class: 'split'},
      el('div', {class: 'card'}, el('h3', null, 'Settings'),
        el('dl', {class: 'settings'}, Object.entries(run.settings).map(
          ([name, value]) => el('div', null, el('dt', null, name.replace(
            /_/g, ' ')), el('dd', {dir: 'auto'}, value))))),
      el('div', {class: 'card'}, el('h3', null, 'At the end'), run.log.map(
        (line) => el('p', null, line)), el('h3', null, 'Machine'),
      el('p', {id: 'machine'}, run.machine || 'The run did not record it.'),
      el('p', {class: 'soft'}, 'Trained by d2lbert ' + run.version + '.'))),
    details);
  return build;
}

addTab({key: 'training', title: 'Training', draw: drawTraining,
  missing: () => data.training ? null : 'This model came without a history ' +
    'of its training: d2lbert did not train it, or imported it.'});

// This is the last file of the page: start it

makeHead();
makeTabs();
makeTheme();
{
  const asked = location.hash.slice(1);
  open(tabs.some((tab) => tab.key === asked) ? asked : 'attention');
}
