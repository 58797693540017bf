"""A small run, what its page shows, and a browser to open it in."""
import shutil

import pytest

import d2lbert as d2l
from d2lbert.pictures.show import page_data

#: Texts that would break a page that does not treat them as data.
TEXTS = ['a crane is flying', ('a crane driver came', 'he just left'),
         '</script><script>window.broken=1</script> "crane" <b>&amp;</b> '
         '\u2028 <!-- {{data}} \U0001f9a2 crane',
         '\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd the crane']


@pytest.fixture(scope='session')
def run(tmp_path_factory):
    """A run folder with a history and held-out figures."""
    folder = tmp_path_factory.mktemp('runs') / 'a & <b>run'
    d2l.pretrain(corpus='sample', batch_size=32, max_len=32, num_hiddens=12,
                 ffn_num_hiddens=16, num_heads=3, num_layers=2, num_steps=6,
                 eval_every=3, seed=1, out=folder)
    return folder


@pytest.fixture(scope='session')
def tuned(run, tmp_path_factory):
    """A run folder of fine-tuning, with a history of two epochs."""
    examples = ['a crane flies', 'the old river', 'a grey bird',
                'it is old'] * 4, ['bird', 'water', 'bird', 'water'] * 4
    return d2l.finetune(run, train=examples, valid=examples, num_epochs=2,
                        batch_size=4, max_len=16, log_interval=1, seed=1,
                        out=tmp_path_factory.mktemp('tuned') / 'tuned')


@pytest.fixture(scope='session')
def model(run):
    return d2l.load_model(run, trainable=False)


@pytest.fixture(scope='session')
def data(run):
    return page_data(run, TEXTS)


@pytest.fixture(scope='session')
def browser():
    """A headless Chromium, by Selenium."""
    webdriver = pytest.importorskip(
        'selenium.webdriver', reason="no selenium here: pip install "
        "'.[browser]'")
    binary = next(filter(None, map(shutil.which, (
        'chromium', 'chromium-browser', 'google-chrome', 'chrome'))), None)
    driver = shutil.which('chromedriver')
    if not binary or not driver:
        pytest.skip('no chromium and chromedriver here to open a page with')
    options = webdriver.ChromeOptions()
    for flag in ('--headless=new', '--no-sandbox', '--disable-gpu',
                 '--force-prefers-reduced-motion',
                 '--host-resolver-rules=MAP * ~NOTFOUND'):
        options.add_argument(flag)
    options.binary_location = binary
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    found = webdriver.Chrome(options=options,
                             service=webdriver.ChromeService(driver))
    yield found
    found.quit()
