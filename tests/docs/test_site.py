"""The built documentation site in Chromium, opened from the file system. Only `make test-site` runs it."""

import os
import pathlib
import shutil

import pytest

if not os.environ.get('BMX_MELIUS_TEST_SITE'):
    pytest.skip('needs the site and Chromium: make test-site', allow_module_level=True)

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

SITE = pathlib.Path(os.environ['BMX_MELIUS_TEST_SITE']).resolve()
SECONDS = 60
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob('*.html') if path.name != '404.html')
CUT_OFF = """
const blocks = [...document.querySelectorAll('pre > code')];
return blocks.filter((block) => block.scrollWidth > block.clientWidth + 1).map((block) => block.innerText.slice(0, 80));
"""


@pytest.fixture(scope='module')
def browser():
    options = webdriver.ChromeOptions()
    for argument in ('--headless=new', '--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--window-size=1400,1000'):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which('chromedriver')))
    yield driver
    driver.quit()


@pytest.mark.parametrize(
    'words, page',
    [
        ('confusion matrix', 'tutorial.html'),
        ('resume', 'training.html'),
        ('own images', 'data.html'),
        ('learning rate', 'training-reference.html'),
    ],
)
def test_a_search_in_the_opened_site_finds_the_page_that_explains_it_first(words, page, browser):
    browser.get((SITE / 'zoo.html').as_uri())
    field = browser.find_element(By.CSS_SELECTOR, 'input[name="query"]')
    browser.execute_script('arguments[0].focus()', field)
    field.send_keys(words)
    found = WebDriverWait(browser, SECONDS).until(lambda b: b.find_elements(By.CSS_SELECTOR, '.md-search-result__link'))
    assert found[0].get_attribute('href').partition('?')[0].partition('#')[0] == (SITE / page).as_uri()


@pytest.mark.parametrize('page', PAGES)
def test_blocks_of_code_are_not_cut_off(page, browser):
    browser.get((SITE / page).as_uri())
    assert browser.execute_script(CUT_OFF) == []


@pytest.mark.parametrize('page', PAGES)
def test_pages_load_nothing_from_other_hosts(page, browser):
    browser.get((SITE / page).as_uri())
    loaded = browser.execute_script('return performance.getEntriesByType("resource").map((entry) => entry.name)')
    assert [address for address in loaded if not address.startswith('file:')] == []


@pytest.mark.parametrize(
    'old, new', [('deploy', 'conversion'), *((name, name) for name in ('engine', 'kernels', 'packed-format', 'fuzzing', 'releasing'))]
)
def test_old_addresses_of_pages_that_moved_lead_to_the_pages(old, new, browser):
    target = (SITE / 'internals' / f'{new}.html').as_uri()
    browser.get((SITE / f'{old}.html').as_uri())
    WebDriverWait(browser, SECONDS).until(lambda b: b.current_url == target)
