// Masks: what the model guesses where a token is hidden

function drawMasks(panel) {
  const one = text();
  if (!one.guesses) {
    panel.append(el('p', {class: 'note'}, data.kind === 'fine-tuned'
      ? 'A fine-tuned model has no head that guesses words.'
      : 'This model came without the head that guesses words, so there is ' +
        'nothing to show.'));
    return null;
  }
  const heading = el('h3', {id: 'hidden', dir: 'auto'});
  const list = el('div', {id: 'guesses'});
  const own = el('p', {id: 'own', class: 'soft', dir: 'auto'});
  const allowed = (t) => one.guesses[t] !== null;
  const {box, buttons, press} = flow('Tokens of the text; press one to hide ' +
    'it', allowed, (t) => {
    const [guesses, share, rank] = one.guesses[t];
    const name = shown(one.tokens[t]);
    buttons.forEach((button, k) => {
      button.textContent = k === t ? data.mask : shown(one.tokens[k]);
      button.setAttribute('aria-label', k === t ? shown(one.tokens[k]) +
        ', hidden' : shown(one.tokens[k]));
    });
    heading.textContent = 'Instead of ' + name;
    const most = guesses[0][1];
    clear(list, bars(guesses.map(([token, probability]) => ({name: token,
      said: percent(probability), length: probability / most, value:
      probability, own: token === one.tokens[t].token})), 'wide'));
    own.textContent = readAs(one.tokens[t])
      ? name + ' is not in the vocabulary; the model reads ' +
        one.tokens[t].token + ', its guess number ' + counted(rank) +
        ', at ' + percent(share) + '.'
      : name + ', which stands there, is guess number ' + counted(rank) +
        ', at ' + percent(share) + '.';
    say(name + ' hidden. Guesses: ' + guesses.slice(0, 5).map(([token, p]) =>
      token + ' ' + percent(p)).join(', ') + '. ' + own.textContent);
  });
  panel.append(el('p', {class: 'hint'}, 'Press a token to hide it: the ' +
    'model then guesses from the others what stood there. Its ten best ' +
    'guesses, and the share of 100 % that it gives each.'),
  el('div', {class: 'split'}, box,
    el('div', {class: 'card stay'}, heading, list, own)));
  const before = byId('live').textContent;
  const first = one.guesses.findIndex((found, t) => found !== null && t > 1);
  press(first >= 0 ? first : one.guesses.findIndex(Boolean));
  say(before);
  return null;
}

addTab('masks', 'Masks', drawMasks, true);
