// Masks: the predictions of the model for a masked token

function drawMasks(panel) {
  const {tokens, guesses: guessesOf} = currentText();
  const heading = el('h3', {id: 'hidden', dir: 'auto'});
  const list = el('div', {id: 'guesses'});
  const own = el('p', {id: 'own', class: 'soft', dir: 'auto'});
  const allowed = (t) => guessesOf[t] !== null;
  const {box, buttons, press} = flow('Tokens of the text; press one to mask ' +
    'it', allowed, (t) => {
    const [guesses, ownProbability, rank] = guessesOf[t];
    const name = tokenText(tokens[t]);
    buttons.forEach((button, k) => {
      const ownName = tokenText(tokens[k]);
      button.textContent = k === t ? data.mask : ownName;
      button.setAttribute('aria-label', k === t ? ownName + ', masked'
        : ownName);
    });
    heading.textContent = 'Guesses in place of ' + name;
    const most = guesses[0][1];
    setContents(list, bars(guesses.map(([token, probability]) => ({name: token,
      label: percent(probability), length: probability / most, value:
      probability, own: token === tokens[t].token})), 'wide'));
    own.textContent = readAs(tokens[t])
      ? name + ' is not in the vocabulary. The model reads ' +
        tokens[t].token + ', which is guess number ' +
        formatNumber(rank) + ', with probability ' +
        percent(ownProbability) + '.'
      : name + ', the token of the text, is guess number ' +
        formatNumber(rank) + ', with probability ' +
        percent(ownProbability) + '.';
    announce(name + ' masked. Guesses: ' + guesses.slice(0, 5).map(
      ([token, probability]) => token + ' ' + percent(probability))
      .join(', ') + '. ' + own.textContent);
  });
  panel.append(el('p', {class: 'hint'}, 'Press a token to mask it. The ' +
    'list shows the ten tokens that the model then predicts with the ' +
    'highest probabilities.'),
  el('div', {class: 'split'}, box,
    el('div', {class: 'card stay'}, heading, list, own)));
  // Begin with a token after token 1, which is often an article. `press` lets
  // screen readers read the prediction aloud; the first one must stay silent
  const before = byId('live').textContent;
  const first = guessesOf.findIndex((found, t) => found !== null && t > 1);
  press(first >= 0 ? first : guessesOf.findIndex(Boolean));
  announce(before);
  return null;
}

addTab({key: 'masks', title: 'Masks', draw: drawMasks, perText: true,
  missing: () => data.texts.some((one) => one.guesses) ? null
    : data.kind === 'fine-tuned'
      ? 'A fine-tuned model has no head for masked tokens.'
      : 'This model came without its head for masked tokens, so it cannot ' +
        'fill masks.'});
