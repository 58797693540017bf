"""The page in a real browser: what a click or a key then shows.
"""
import contextlib
import re
import time

import numpy as onp
import pytest
import sentences

import d2lbert as d2l
from d2lbert.pictures.activations import attention_of
from d2lbert.pictures.show import Page, page_data, render

TABS = 'attention', 'masks', 'neighbours', 'senses', 'training'


@pytest.fixture(scope='module')
def url(data, tmp_path_factory):
    path = tmp_path_factory.mktemp('page') / 'page.html'
    Page(data).save(path)
    return path.as_uri()


class Window:
    """An open page, and what a reader does with it."""

    def __init__(self, browser):
        self.browser, self.run = browser, browser.execute_script

    def all(self, selector):
        return self.browser.find_elements('css selector', selector)

    def one(self, selector):
        return self.browser.find_element('css selector', selector)

    def click(self, selector):
        self.one(selector).click()

    def text(self, selector):
        return self.run('return document.querySelector(arguments[0])'
                        '.textContent', selector)

    def texts(self, selector):
        return self.run('return [...document.querySelectorAll(arguments[0])]'
                        '.map((one) => one.textContent)', selector)

    def values(self, selector):
        return self.run('return [...document.querySelectorAll(arguments[0])]'
                        '.map((one) => +one.dataset.value)', selector)

    def choose(self, selector, value):
        """Move a slider, or choose in a list."""
        self.run('const one = document.querySelector(arguments[0]);'
                 'one.value = arguments[1];'
                 "one.dispatchEvent(new Event('input'));"
                 "one.dispatchEvent(new Event('change'))", selector, value)

    def key(self, name):
        for kind in 'keyDown', 'keyUp':
            self.browser.execute_cdp_cmd('Input.dispatchKeyEvent', dict(
                type=kind, key=name, code=name,
                windowsVirtualKeyCode=dict(Tab=9, Enter=13, End=35, Home=36,
                                           ArrowLeft=37, ArrowUp=38,
                                           ArrowRight=39,
                                           ArrowDown=40)[name]))

    def focused(self):
        return self.browser.switch_to.active_element

    def table(self):
        """The open table of weights, (T, T)."""
        values = self.values('#weights td')
        T = int(len(values) ** 0.5)
        return onp.array(values).reshape(T, T)

    def resize(self, width, height=900):
        self.browser.execute_cdp_cmd('Emulation.setDeviceMetricsOverride',
                                     dict(width=width, height=height,
                                          deviceScaleFactor=1,
                                          mobile=width < 600))

    def complaints(self):
        return [line['message'] for line in self.browser.get_log('browser')
                if line['level'] == 'SEVERE']


@pytest.fixture
def window(browser, url):
    found = Window(browser)
    found.resize(1400)
    browser.get(url)
    found.complaints()      # of other tests
    return found


def wait(until, seconds=20):
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope='module')
def weights(model):
    net, tokenizer = model
    one = tokenizer.encode('a crane is flying')
    return attention_of(net, one.ids, one.segments)


@pytest.fixture(scope='module')
def opened(weights, data):
    """The weights (T, T) of the head on which the page opens."""
    return weights[tuple(data['texts'][0]['head'])]


# Attention

def test_the_page_opens_on_the_clearest_head(window, data):
    layer, head = data['texts'][0]['head']
    assert window.texts('.picked li') == [
        f'layer {layer + 1}, head {head + 1}']
    # About two lines for each of the six tokens
    drawn, total = re.findall(r'[0-9]+', window.text('#lines'))
    assert 6 <= int(drawn) <= 14 and int(total) == 36
    # Another text opens on a head of its own, until the reader picks one
    window.choose('#text', 1)
    layer, head = data['texts'][1]['head']
    assert window.texts('.picked li') == [
        f'layer {layer + 1}, head {head + 1}']
    window.click('[data-head="1,0"]')
    window.choose('#text', 0)
    assert window.texts('.picked li') == ['layer 2, head 1']


def test_lines_are_counted_of_the_heads_that_are_shown(window):
    window.choose('#floor', 0)
    assert window.text('#lines') == '36 of 36 lines'
    window.click('[value=mean]')
    window.click('.heads tr:nth-child(2) th button')
    assert window.text('#lines') == '36 of 36 lines'
    window.click('[value=several]')
    assert window.text('#lines') == '108 of 108 lines of 3 heads'
    window.click('[value=one]')
    assert window.text('#lines') == '36 of 36 lines'


def test_a_long_text_is_shaded_and_has_no_lines(window, model, tmp_path):
    long = page_data(model, ' '.join(['a crane is flying'] * 78))
    T = len(long['texts'][0]['tokens'])
    assert T > 300
    Page(long).save(tmp_path / 'long.html')
    window.browser.get((tmp_path / 'long.html').as_uri())
    assert not window.all('.pair') and not window.all('#floor')
    assert window.text('#lines').startswith('Stronger shades')
    one = model[1].encode(long['texts'][0]['text'])
    weights = attention_of(model[0], one.ids, one.segments)[
        tuple(long['texts'][0]['head'])]

    def shares():
        return window.run(
            'return [...document.querySelectorAll(".shaded button")].map('
            "(one) => +one.style.getPropertyValue('--share'))")
    mean = weights.mean(axis=0)
    onp.testing.assert_allclose(shares(), mean / mean.max(), atol=5e-3)
    window.click('.shaded [data-token="7"]')
    onp.testing.assert_allclose(
        shares(), weights[7] / weights[7].max(), atol=5e-3)
    assert window.texts('#looks h3')[0] == 'is attends to'
    # One column of tokens would be 7,500 pixels tall
    assert window.run('return document.body.scrollHeight') < 3500
    assert not window.complaints()


def test_a_head_is_picked_and_its_weights_are_the_models(window, weights):
    heads = window.all('.heads td button')
    assert len(heads) == 2 * 3
    window.click('#weights summary')
    for layer, head in (0, 0), (1, 2):
        window.click(f'[data-head="{layer},{head}"]')
        wait(lambda: window.all('#weights td'))
        found = window.table()
        onp.testing.assert_allclose(found, weights[layer, head], atol=2e-5)
        onp.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
        assert [one.get_attribute('data-head') for one in heads
                if one.get_attribute('aria-pressed') == 'true'] == [
            f'{layer},{head}']
    # The edge of the grid picks a whole layer, and shows its mean
    window.click('.heads tr:nth-child(2) th button')
    onp.testing.assert_allclose(window.table(), weights[0].mean(axis=0),
                                atol=2e-5)
    assert window.one('[value=mean]').is_selected()
    window.click('[value=several]')
    window.click('[data-head="1,1"]')
    assert window.texts('.picked li') == [
        'layer 1, head 1', 'layer 1, head 2', 'layer 1, head 3',
        'layer 2, head 2']
    window.click('[value=one]')
    assert window.texts('.picked li') == ['layer 1, head 1']


def test_all_heads_are_shaded_on_one_scale(window, weights):
    wait(lambda: window.run('return document.querySelector(".heads table")'
                            '.dataset.done') == 'yes')
    shown = window.run(
        'return [...document.querySelectorAll(".heads td canvas")].map((c) =>'
        '[...c.getContext("2d").getImageData(0, 0, c.width, c.height).data]'
        '.filter((x, k) => k % 4 === 3))')
    wanted = 255 * onp.sqrt(weights.reshape(6, -1))
    onp.testing.assert_allclose(shown, wanted, atol=1)
    # Their largest weights differ, so a scale for each would be another
    assert onp.ptp(wanted.max(axis=1)) > 3
    keys = window.run('return [...document.querySelectorAll(".shades i")]'
                      '.map((one) => [+one.dataset.weight, '
                      '+getComputedStyle(one).opacity])')
    assert keys == [[w, pytest.approx(w ** 0.5, abs=1e-4)]
                    for w in (0.01, 0.1, 0.5, 1)]
    assert window.text('.shades').endswith('1 %10 %50 %100 %')

    # And so are their lines
    window.run('window.drawn = []; const pen = CanvasRenderingContext2D'
               '.prototype, stroke = pen.stroke; pen.stroke = function () {'
               'drawn.push(this.globalAlpha); stroke.call(this); }')
    for layer, head in (0, 0), (1, 2):
        window.click(f'[data-head="{layer},{head}"]')
        window.run('drawn.length = 0')
        window.choose('#floor', 0)
        onp.testing.assert_allclose(
            window.run('return drawn'),
            0.12 + 0.88 * onp.sqrt(weights[layer, head].ravel()), atol=1e-3)


def check_looks(window, weights, t, name):
    tokens = ['<cls>', 'a', 'crane', 'is', 'flying', '<sep>']
    heads = window.texts('#looks h3')
    assert heads == [f'{name} attends to', f'{name} is attended to by']
    for part, wanted in ((1, weights[t]), (2, weights[:, t])):
        where = f'#looks .looks > div:nth-child({part}) li'
        onp.testing.assert_allclose(window.values(where),
                                    sorted(wanted, reverse=True), atol=2e-5)
        names = [one.split(' ')[0] for one in window.texts(
            f'{where} .name')]
        assert [weights[t][tokens.index(one)] if part == 1 else
                weights[tokens.index(one), t] for one in names] == [
            pytest.approx(x, abs=2e-5) for x in sorted(wanted, reverse=True)]


def test_a_token_under_the_mouse_shows_its_attention(window, opened):
    from selenium.webdriver import ActionChains
    row = window.one('.left .row[data-token="2"]')
    ActionChains(window.browser).move_to_element(row).perform()
    check_looks(window, opened, 2, 'crane')
    shares = window.texts('.right .share')
    assert [int(share.split()[0]) for share in shares] == [
        round(100 * x) for x in opened[2]]
    ActionChains(window.browser).move_to_element(
        window.one('h1')).perform()
    assert not window.all('#looks .looks')
    row.click()
    ActionChains(window.browser).move_to_element(
        window.one('h1')).perform()
    check_looks(window, opened, 2, 'crane')      # it stays


def test_a_token_is_reached_by_keys_and_read_aloud(window, opened):
    window.run('document.querySelector(".right .row").focus()')
    window.key('ArrowDown')
    window.key('ArrowDown')
    check_looks(window, opened, 2, 'crane')
    said = window.text('#live')
    first = opened[2].max()
    assert said.startswith('crane attends to ')
    assert f'{100 * first:.1f}' in said
    assert window.one('#live').get_attribute('aria-live') == 'polite'


def test_the_least_weight_rests_while_a_token_is_chosen(window):
    from selenium.webdriver import ActionChains
    window.choose('#floor', 50)
    assert window.one('#floor').is_enabled()
    assert window.text('output[for=floor]').startswith('25')
    window.one('.left .row[data-token="2"]').click()
    assert not window.one('#floor').is_enabled()
    assert window.text('output[for=floor]') == 'all'
    window.one('.left .row[data-token="2"]').click()
    window.run('document.activeElement.blur()')
    ActionChains(window.browser).move_to_element(
        window.one('h1')).perform()
    assert window.one('#floor').is_enabled()
    assert window.text('output[for=floor]').startswith('25')


def test_a_higher_least_weight_leaves_fewer_lines(window, opened):
    def lines():
        return int(window.text('#lines').split()[0].replace(',', ''))
    for value in 0, 30, 42, 100:
        window.choose('#floor', value)
        least = (value / 100) ** 2
        assert lines() == (opened >= least).sum()
    # Something is drawn, and less of it
    ink = []
    for value in 0, 42:
        window.choose('#floor', value)
        ink.append(window.run(
            'const c = document.querySelector(".pair canvas");'
            'return c.getContext("2d").getImageData(0, 0, c.width, c.height)'
            '.data.filter((x, k) => k % 4 === 3 && x > 0).length'))
    assert ink[0] > ink[1]


def test_special_tokens_are_hidden(window, opened):
    window.click('#weights summary')
    window.click('#hide')
    assert [row.text for row in window.all('.left .row')
            if row.is_displayed()] == ['a', 'crane', 'is', 'flying']
    onp.testing.assert_allclose(window.table(), opened[1:5, 1:5],
                                atol=2e-5)


def test_every_head_has_a_picture(window):
    wait(lambda: window.one('.heads table').get_attribute('data-done'))
    assert window.run(
        'return [...document.querySelectorAll(".heads canvas")].every((c) =>'
        'c.getContext("2d").getImageData(0, 0, c.width, c.height).data'
        '.some((x, k) => k % 4 === 3 && x > 0))')


# The other tabs

def test_guesses_for_a_masked_token_are_those_of_fill_mask(window, model):
    net, tokenizer = model
    window.click('#tab-masks')
    words = 'a crane is flying'.split()
    for k in range(4):
        window.click(f'#panel-masks [data-token="{1 + k}"]')
        assert window.texts('#panel-masks .flow button') == [
            '<cls>', *words[:k], '<mask>', *words[k + 1:], '<sep>']
        guesses, = d2l.fill_mask(net, tokenizer, ' '.join(
            [*words[:k], '<mask>', *words[k + 1:]]), 10)
        assert window.values('#guesses li') == [
            guess.probability for guess in guesses]
        assert window.texts('#guesses .name') == [
            guess.token for guess in guesses]
        assert words[k] in window.text('#own')
        assert guesses[0].token in window.text('#live')
    assert window.one('#panel-masks [data-token="0"]').get_attribute(
        'aria-disabled') == 'true'


def test_neighbours_are_read_in_context_and_by_layer(window, data):
    window.click('#tab-neighbours')
    sample = data['sample']
    near = data['texts'][0]['near']
    for layer, token, kind in (2, 2, 0), (0, 2, 0), (1, 4, 1), (2, 0, 0):
        window.choose('#near-layer', layer)
        window.click(f'#panel-neighbours [data-token="{token}"]')
        window.click(f'[name=same][value={["kind", "same"][kind]}]')
        flat = near[layer][token][kind] or near[layer][token][0]
        assert window.values('#near li') == flat[1::2]
        for index, text in zip(flat[::2], window.texts('#near .text')):
            s, begin, end = sample['tokens'][index]
            sentence = sample['sentences'][s]
            assert sentence[begin:end] in text
            assert text.strip('\u2026')[:40] in sentence
    window.click('#panel-neighbours [data-token="2"]')
    window.click('[name=same][value=same]')
    marked = window.texts('#near mark')
    assert marked and {mark.lower() for mark in marked} == {'crane'}


def test_marks_of_senses_have_the_places_of_their_vectors(window, data):
    window.click('#tab-senses')
    word = data['senses'][0]
    assert word['word'] == 'crane' and window.texts(
        '#panel-senses .keys li') == [
        f'{name} ({word["senses"].count(k)})'
        for k, name in enumerate(word['names'])]
    for layer in 2, 0:
        window.choose('#sense-layer', layer)
        at = onp.array(window.run(
            'return [...document.querySelectorAll("#plot .point")].map((p) =>'
            '{const m = new DOMMatrix(p.style.transform);'
            'return [m.e, -m.f]})'))
        points = onp.array(word['layers'][layer])
        at, points = at - at.mean(axis=0), points - points.mean(axis=0)
        zoom = (at * points).sum() / (points * points).sum()
        onp.testing.assert_allclose(at, zoom * points, atol=0.5)
        assert zoom > 0
    window.run('document.querySelector("[data-use=\'3\']").focus()')
    sense = word['names'][word['senses'][3]]
    assert window.text('#use') == f'{sense}: {word["texts"][3]}'
    window.key('ArrowRight')
    assert word['texts'][4] in window.text('#use')
    # Marks differ by more than colour
    shapes = window.run('return [...document.querySelectorAll(".point")].map('
                        '(p) => p.lastChild.tagName)')
    assert len(set(shapes)) == 2


def test_training_shows_losses_settings_and_the_machine(window, run):
    window.click('#tab-training')
    window.click('#panel-training details summary')
    wait(lambda: window.all('#panel-training table'))
    header, *rows = [line.split(',') for line in (run / 'losses.csv')
                     .read_text().splitlines()]
    shown = window.texts('#panel-training table td')
    at = header.index('mlm_loss')
    width = len(window.texts('#panel-training table th[scope=col]')) - 1
    assert [float(x) for x in shown[::width]] == [
        pytest.approx(float(row[at]), rel=1e-4) for row in rows]
    titles = window.texts('#panel-training h3')
    assert titles[:3] == ['MLM loss', 'NSP loss', 'Held-out accuracy']
    text = window.text('#panel-training')
    for said in 'batch size32', 'num steps6', 'pairs/sec', 'devicescpu(0)':
        assert said in text, said
    assert 'core' in window.text('#machine')


def test_training_of_a_task_shows_its_held_out_loss(window, tuned, tmp_path):
    Page(page_data(tuned, 'a crane')).save(tmp_path / 'tuned.html')
    window.browser.get((tmp_path / 'tuned.html').as_uri())
    window.click('#tab-training')
    titles = window.texts('#panel-training h3')
    assert titles[:2] == ['task loss', 'Held-out accuracy']
    assert 'held out, last ' in window.text('#panel-training .keys')
    assert not window.complaints()


# The page as a whole

def test_tabs_with_nothing_to_show_look_empty(window, data, tmp_path):
    assert not window.all('[role=tab].empty')
    texts = [dict(text, guesses=None) for text in data['texts']]
    Page(dict(data, texts=texts, training=None, senses=[])).save(
        tmp_path / 'bare.html')
    window.browser.get((tmp_path / 'bare.html').as_uri())
    assert window.texts('[role=tab]') == [
        'Attention', 'Masks (none)', 'Neighbours', 'Senses (none)',
        'Training (none)']
    for tab, reason in (('masks', 'without its head'), ('senses', '--word'),
                        ('training', 'without a history')):
        window.click(f'#tab-{tab}')
        assert reason in window.text(f'#panel-{tab}')
        assert reason in window.one(f'#tab-{tab}').get_attribute('title')
    assert not window.complaints()


def test_texts_are_shown_as_written(window, data):
    assert window.text('h1') == 'What a & <b>run learnt'
    for k in range(len(data['texts'])):
        window.choose('#text', k)
        written = data['texts'][k]['text'].split() + (
            data['texts'][k]['pair'] or '').split()
        for tab in TABS[:3]:
            window.click(f'#tab-{tab}')
            if tab == 'masks':
                continue        # one of them is masked
            names = window.texts('.left .name' if tab == 'attention' else
                                 f'#panel-{tab} .flow button')
            assert [name for name in names
                    if name not in ('<cls>', '<sep>')] == written
    direction = ('return getComputedStyle(document.querySelector('
                 '"#panel-neighbours .flow")).direction')
    wait(lambda: window.run(direction) == 'rtl')
    window.choose('#text', 2)
    wait(lambda: window.run(direction) == 'ltr')
    assert window.run('return window.broken') is None
    assert len(window.all('script')) == 2 and not window.all('b')
    assert not window.complaints()


def test_the_keyboard_alone_goes_everywhere(window):
    # From the start of the page, wherever the mouse was
    window.run("""
        document.body.tabIndex = -1
        document.body.focus()
        document.body.removeAttribute('tabindex')""")
    window.key('Tab')
    assert window.focused().text == 'Skip to the pictures'
    for _ in range(10):
        window.key('Tab')
        if window.focused().get_attribute('role') == 'tab':
            break
    for tab in (*TABS[1:], TABS[0]):
        window.key('ArrowRight')
        assert window.focused().get_attribute('id') == f'tab-{tab}'
        assert window.one(f'#panel-{tab}').is_displayed()
        assert len([one for one in window.all('[role=tabpanel]')
                    if one.is_displayed()]) == 1
    window.key('Tab')
    assert window.focused().get_attribute('role') == 'tabpanel'
    assert window.run('''
        return [...document.querySelectorAll('button, input, select, [role]')]
          .filter((one) => !(one.textContent.trim() || one.ariaLabel ||
            (one.labels && one.labels.length) ||
            one.getAttribute('aria-labelledby') ||
            one.getAttribute('role') === 'status')).length''') == 0


def test_light_and_dark_follow_the_system_and_the_switch(window):
    def paper():
        return window.run('return getComputedStyle(document.body)'
                          '.backgroundColor')
    seen = {}
    for value in 'light', 'dark':
        window.browser.execute_cdp_cmd('Emulation.setEmulatedMedia', dict(
            features=[dict(name='prefers-color-scheme', value=value)]))
        wait(lambda: window.run('return document.documentElement.dataset'
                                '.theme') == value)
        seen[value] = paper()
    assert seen['light'] != seen['dark']
    window.click('[data-choice=light]')
    assert paper() == seen['light']
    window.click('[data-choice=dark]')
    assert paper() == seen['dark']
    window.browser.execute_cdp_cmd('Emulation.setEmulatedMedia',
                                   dict(features=[]))


def test_text_has_enough_contrast(window):
    # WCAG 2.2, success criterion 1.4.3
    def light(colour):
        parts = [int(colour[k:k + 2], 16) / 255 for k in (1, 3, 5)]
        return sum(share * (x / 12.92 if x <= 0.04045
                            else ((x + 0.055) / 1.055) ** 2.4)
                   for share, x in zip((0.2126, 0.7152, 0.0722), parts))
    for theme in 'light', 'dark':
        window.click(f'[data-choice={theme}]')
        for name in 'ink', 'soft', 'out', 'in':
            for back in 'paper', 'card', 'wash':
                lights = sorted(light(window.run('return colour(arguments[0])',
                                                 one))
                                for one in (name, back))
                assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5


def test_all_tabs_are_printed(window):
    with contextlib.ExitStack() as stack:
        window.browser.execute_cdp_cmd('Emulation.setEmulatedMedia',
                                       dict(media='print'))
        stack.callback(window.browser.execute_cdp_cmd,
                       'Emulation.setEmulatedMedia', dict(media=''))
        window.run('dispatchEvent(new Event("beforeprint"))')
        assert all(panel.is_displayed() and len(panel.text) > 80
                   for panel in window.all('[role=tabpanel]'))
        assert [one.text for one in window.all('h2')] == [
            tab.capitalize() for tab in TABS]
        window.run('dispatchEvent(new Event("afterprint"))')
    assert not window.one('#panel-masks').is_displayed()


def test_a_page_in_a_notebook_works_as_it_does_alone(window, data, tmp_path):
    (tmp_path / 'cell.html').write_text(
        f'<!doctype html><meta charset="utf-8">{Page(data)._repr_html_()}',
        'utf-8')
    window.browser.get((tmp_path / 'cell.html').as_uri())
    window.browser.switch_to.frame(0)
    window.click('#tab-masks')
    window.click('#panel-masks [data-token="1"]')
    assert window.texts('#guesses .name') == [
        guess for guess, _ in data['texts'][0]['guesses'][1][0]]
    window.browser.switch_to.default_content()
    assert not window.complaints()


@pytest.mark.parametrize('width', [390, 1400])
def test_no_button_or_number_is_cut_off(width, window):
    window.resize(width)
    for k in range(4):
        window.choose('#text', k)
        for tab in TABS:
            window.click(f'#tab-{tab}')
            assert window.run('return document.documentElement.scrollWidth '
                             '<= innerWidth')
            # No button or number crosses the edge of its card
            assert window.run('''
                const beyond = (one, box) => {
                  const a = one.getBoundingClientRect();
                  const b = box.getBoundingClientRect();
                  return a.width && (a.left < b.left - 1 ||
                    a.right > b.right + 1);
                };
                return [...document.querySelectorAll('.card')].flatMap(
                  (box) => [...box.querySelectorAll('button, .value, .share,'
                    + 'text')].filter((one) => beyond(one, box) &&
                    !one.closest('.scroll')).map((one) => one.outerHTML))
                ''') == []
    # Fingers need room
    assert window.run('''
        return [...document.querySelectorAll('.flow button, .row, [role=tab]')]
          .filter((one) => one.offsetHeight && one.offsetHeight < 24)
          .length''') == 0
    assert not window.complaints()


@pytest.mark.slow
def test_base_size_does_not_freeze_the_browser(window, tmp_path):
    tokenizer = sentences.whole_words()
    net = sentences.build_net(len(tokenizer), num_hiddens=24, num_layers=12,
                              num_heads=12, max_len=512)
    data = page_data((net, tokenizer), ' '.join((
        sentences.WORDS * 25)[:398]))
    assert data['bits'] == 8
    (tmp_path / 'page.html').write_text(render(data), 'utf-8')
    window.browser.get((tmp_path / 'page.html').as_uri())
    window.run('''
        window.longest = 0;
        new PerformanceObserver((list) => list.getEntries().forEach((one) => {
          window.longest = Math.max(window.longest, one.duration);
        })).observe({type: 'longtask'});''')
    wait(lambda: window.one('.heads table').get_attribute('data-done'), 60)
    for head in '11,11', '3,4':
        window.click(f'[data-head="{head}"]')
    window.click('.shaded [data-token="5"]')
    assert window.run('return longest') < 1500
