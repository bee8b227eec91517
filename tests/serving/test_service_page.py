"""The page of the service in Chromium, as a user sees it. Only `make test-service` runs it."""

import base64
import io
import json
import os
import shutil

import numpy as np
import PIL.Image
import pytest

if not os.environ.get('BMX_MELIUS_TEST_SERVICE'):
    pytest.skip('needs Chromium: make test-service', allow_module_level=True)

from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from bmx_melius import Session

pytest_plugins = ['support.services']  # its fixtures
SECONDS = 60  # until a page must have changed
DROP = """
const content = Uint8Array.from(atob(arguments[0]), (character) => character.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([content], arguments[1], {type: 'image/png'}));
const zone = document.querySelector('label[for="file"]');
zone.dispatchEvent(new DragEvent('dragover', {dataTransfer: transfer, bubbles: true, cancelable: true}));
const highlighted = zone.classList.contains('over');
zone.dispatchEvent(new DragEvent('drop', {dataTransfer: transfer, bubbles: true, cancelable: true}));
return highlighted && !zone.classList.contains('over');
"""
# Contrast of texts by WCAG 2: the ratio of the relative luminances of colour and background.
CONTRASTS = """
function luminance(colour) {
  const parts = colour.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255);
  const [r, g, b] = parts.map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const background = luminance(getComputedStyle(document.body).backgroundColor);
return [...document.querySelectorAll('h1, label, .action, .hint, th, td, caption, footer, a, select')].map((element) => {
  const text = luminance(getComputedStyle(element).color);
  return [element.tagName, (Math.max(text, background) + 0.05) / (Math.min(text, background) + 0.05)];
});
"""


@pytest.fixture(scope='module')
def browser():
    options = webdriver.ChromeOptions()
    for argument in ('--headless=new', '--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--window-size=1000,900'):
        options.add_argument(argument)
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which('chromedriver')))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, client):
    """The page, newly loaded; at the end it must have reported no error."""
    browser.get(f'http://127.0.0.1:{client.port}/')
    wait(browser, lambda: browser.find_elements(By.TAG_NAME, 'option'))
    yield browser
    problems = [line for line in browser.get_log('browser') if 'the server responded with a status of' not in line['message']]
    assert problems == []


def wait(browser, condition):
    return WebDriverWait(browser, SECONDS).until(lambda _: condition())


def status(page):
    return page.find_element(By.ID, 'status').text


def rows(page):
    """Return the rows of the table of classes: (name, probability)."""
    lines = page.find_elements(By.CSS_SELECTOR, '#classes tbody tr')
    return [tuple(cell.text for cell in line.find_elements(By.XPATH, './*')) for line in lines]


def expected(session, path):
    return [(name, f'{100 * probability:.1f} %') for name, probability in session.classify(path)]


def classes(page, session, path):
    """Wait until the page shows the classes of an image."""
    wanted = expected(session, path)
    wait(page, lambda: rows(page) == wanted)
    assert status(page) == ', '.join(wanted[0])


def test_a_chosen_image_gets_the_classes_of_the_session(page, folder, uploads):
    file = page.find_element(By.ID, 'file')
    for path in uploads[:4]:
        file.send_keys(str(path))
        classes(page, Session(folder / 'colour'), path)
    preview = page.find_element(By.ID, 'preview')
    wait(page, lambda: preview.is_displayed() and preview.get_property('naturalWidth') == 31)
    Select(page.find_element(By.ID, 'model')).select_by_visible_text('second')  # the same image with the other network
    classes(page, Session(folder / 'gray'), path)


def test_no_picture_is_shown_before_an_image_is_chosen_and_after_one_that_cannot_be_decoded(page):
    preview = page.find_element(By.ID, 'preview')
    assert not preview.is_displayed() and preview.value_of_css_property('display') == 'none'
    page.execute_script(DROP, base64.b64encode(b'no image').decode(), 'x.png')
    wait(page, lambda: 'not a JPEG, PNG' in status(page) and not preview.is_displayed())
    assert not page.find_element(By.ID, 'classes').is_displayed()


@pytest.mark.parametrize('size, shown', [((8, 8), (192, 192)), ((10, 30), (60, 180)), ((97, 40), (97, 40)), ((200, 320), (160, 256))])
def test_small_images_are_shown_enlarged_with_sharp_pixels(size, shown, page):
    file = io.BytesIO()
    PIL.Image.fromarray(np.zeros((size[1], size[0], 3), np.uint8)).save(file, 'png')
    page.execute_script(DROP, base64.b64encode(file.getvalue()).decode(), 'x.png')
    preview = page.find_element(By.ID, 'preview')
    wait(page, lambda: preview.get_property('naturalWidth') == size[0] and not status(page).startswith('Computing'))
    assert (preview.size['width'], preview.size['height']) == shown
    assert preview.value_of_css_property('image-rendering') == ('pixelated' if shown[0] > size[0] else 'auto')


def test_only_networks_that_classify_images_can_be_chosen(page):
    assert [option.text for option in Select(page.find_element(By.ID, 'model')).options] == ['colour', 'second']


def test_an_image_can_be_dropped(page, folder, uploads):
    assert page.execute_script(DROP, base64.b64encode(uploads[1].read_bytes()).decode(), uploads[1].name)
    classes(page, Session(folder / 'colour'), uploads[1])


def test_what_the_service_refuses_is_shown_and_the_next_image_works(page, folder, uploads, tmp_path):
    file = io.BytesIO()
    PIL.Image.fromarray(np.zeros((101, 100, 3), np.uint8)).save(file, format='PNG')
    for content, message in ((b'no image', 'not a JPEG, PNG'), (file.getvalue(), 'at most 10,000')):
        page.execute_script(DROP, base64.b64encode(content).decode(), 'x.png')
        wait(page, lambda message=message: message in status(page))
        assert 'error' in page.find_element(By.ID, 'status').get_attribute('class')
        assert not page.find_element(By.ID, 'classes').is_displayed()
    page.find_element(By.ID, 'file').send_keys(str(uploads[0]))
    classes(page, Session(folder / 'colour'), uploads[0])
    assert 'error' not in page.find_element(By.ID, 'status').get_attribute('class')


def test_names_of_classes_are_shown_as_text(page):
    """They come from files; markup in them must not become a part of the page."""
    page.execute_script('addRow({class: 3, name: "<b>bold</b>", probability: 0.5}); byId("classes").hidden = false;')
    assert rows(page)[-1] == ('<b>bold</b>', '50.0 %') and not page.find_elements(By.TAG_NAME, 'b')


def test_everything_can_be_reached_by_the_keyboard_and_has_a_name(page):
    reached = []
    for _ in range(4):
        ActionChains(page).send_keys(Keys.TAB).perform()
        element = page.switch_to.active_element
        reached.append((element.get_attribute('id') or element.tag_name, element.accessible_name))
    assert [name for name, _ in reached] == ['model', 'file', 'a', 'a']
    assert all(label for _, label in reached)
    assert 'Drop an image here' in dict(reached)['file'] and 'Network' in dict(reached)['model']
    assert page.find_element(By.ID, 'status').aria_role == 'status'
    assert page.find_element(By.TAG_NAME, 'html').get_attribute('lang') == 'en'


@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('width', [320, 1000])
def test_the_page_fits_phones_and_has_contrast_in_both_colour_schemes(page, folder, uploads, scheme, width):
    page.execute_cdp_cmd('Emulation.setEmulatedMedia', {'features': [{'name': 'prefers-color-scheme', 'value': scheme}]})
    page.execute_cdp_cmd(
        'Emulation.setDeviceMetricsOverride', {'width': width, 'height': 640, 'deviceScaleFactor': 1, 'mobile': width < 500}
    )
    try:
        page.find_element(By.ID, 'file').send_keys(str(uploads[0]))
        classes(page, Session(folder / 'colour'), uploads[0])
        assert page.execute_script('return document.documentElement.scrollWidth - document.documentElement.clientWidth') == 0
        found = page.execute_script(CONTRASTS)
        assert len(found) > 10 and all(contrast >= 4.5 for _, contrast in found), found
        background = page.find_element(By.TAG_NAME, 'body').value_of_css_property('background-color')
        assert (int(background.strip('rgba()').split(',')[0]) < 100) == (scheme == 'dark')
        if os.environ.get('BMX_MELIUS_SCREENSHOTS'):
            page.save_screenshot(os.path.join(os.environ['BMX_MELIUS_SCREENSHOTS'], f'page-{scheme}-{width}.png'))
    finally:
        page.execute_cdp_cmd('Emulation.clearDeviceMetricsOverride', {})


def test_the_page_requests_nothing_from_other_hosts(page, client, uploads, folder):
    page.find_element(By.ID, 'file').send_keys(str(uploads[0]))
    classes(page, Session(folder / 'colour'), uploads[0])
    loaded = page.execute_script('return performance.getEntriesByType("resource").map((entry) => entry.name)')
    origin = f'http://127.0.0.1:{client.port}/'
    assert loaded and all(name.startswith((origin, 'blob:', 'data:')) for name in loaded), json.dumps(loaded)
