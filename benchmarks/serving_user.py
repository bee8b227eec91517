"""A user of the service for Locust: sends images at random times and compares each answer with `Session`.

`serving_load.py` runs it. Refused requests (429) are counted under another name; everything else but the expected answer is a failure.
At the end all requests are written to requests.json: the name, and the seconds from the start of the load to its start and its end.
"""

import json
import os
import pathlib
import random
import time

import gevent
from locust import FastHttpUser, events, task
from locust.exception import StopUser

FOLDER = pathlib.Path(os.environ['BMX_MELIUS_LOAD_FOLDER'])  # images, and expected.json: name of an image -> its classes
PAUSE = float(os.environ['BMX_MELIUS_LOAD_PAUSE'])  # mean seconds between two requests of a user; 0: the next one follows the answer
SECONDS = float(os.environ['BMX_MELIUS_LOAD_SECONDS'])
EXPECTED = json.loads((FOLDER / 'expected.json').read_text())
IMAGES = {name: (FOLDER / name).read_bytes() for name in EXPECTED}


class Client(FastHttpUser):
    """Sends requests at the times of a Poisson process, late requests after the answer to the one before.

    Users end by themselves after their last answer, and the last one ends the run: Locust's own end does not count answers on the way.
    """

    running = 0
    begin = None
    requests = []

    def on_start(self):
        Client.running += 1
        Client.begin = Client.begin or time.monotonic()
        self.due = 0.0  # seconds from the start of the load to the next request
        gevent.sleep(self.wait_time())  # otherwise all users would begin at the same time

    def on_stop(self):
        Client.running -= 1
        if not Client.running:
            (FOLDER / 'requests.json').write_text(json.dumps(Client.requests))
            self.environment.runner.quit()

    def wait_time(self):
        if not PAUSE:
            return 0
        self.due += random.expovariate(1 / PAUSE)
        return max(0, min(self.due, SECONDS) - elapsed())

    @task
    def classify(self):
        if elapsed() >= SECONDS:
            raise StopUser
        name = random.choice(list(IMAGES))
        with self.client.post('/v1/classify', data=IMAGES[name], name='answered', catch_response=True) as response:
            if response.status_code == 429:
                response.request_meta['name'] = 'refused'
                response.success()
            elif response.status_code != 200:
                response.failure(f'status {response.status_code}: {response.text}')
            elif json.loads(response.text)['top'] != EXPECTED[name]:
                response.failure('another answer than from Session')


@events.request.add_listener
def record(name, response_time, **_):
    end = elapsed()
    Client.requests.append((name, end - response_time / 1000, end))


def elapsed():
    return time.monotonic() - Client.begin
