"""A user of the service for Locust: sends images at random times and compares each answer with that of `Session`.

`serving_load.py` runs it. Refused requests (429) are counted under another name; everything else but the expected answer is a failure.
"""

import json
import os
import pathlib
import random
import time

import gevent
from locust import FastHttpUser, task
from locust.exception import StopUser

FOLDER = pathlib.Path(os.environ['BMX_MELIUS_LOAD_FOLDER'])  # images, and expected.json: name of an image -> its classes
PAUSE = float(os.environ['BMX_MELIUS_LOAD_PAUSE'])  # mean seconds between an answer and the next request of a user
SECONDS = float(os.environ['BMX_MELIUS_LOAD_SECONDS'])
EXPECTED = json.loads((FOLDER / 'expected.json').read_text())
IMAGES = {name: (FOLDER / name).read_bytes() for name in EXPECTED}


class Client(FastHttpUser):
    """Sends requests at the times of a Poisson process.

    Users end by themselves after their last answer, and the last one ends the run: Locust's own end does not count answers on the way.
    """

    running = 0
    end = None

    def on_start(self):
        Client.running += 1
        Client.end = Client.end or time.monotonic() + SECONDS
        gevent.sleep(self.wait_time())  # otherwise all users would begin at the same time

    def on_stop(self):
        Client.running -= 1
        if not Client.running:
            self.environment.runner.quit()

    def wait_time(self):
        return min(random.expovariate(1 / PAUSE), max(0, Client.end - time.monotonic())) if PAUSE else 0

    @task
    def classify(self):
        if time.monotonic() >= Client.end:
            raise StopUser
        name = random.choice(list(IMAGES))
        with self.client.post('/v1/classify', data=IMAGES[name], name='answered', catch_response=True) as response:
            if response.status_code == 429:
                response.request_meta['name'] = 'refused'
                response.success()
            elif response.status_code != 200:
                response.failure(f'status {response.status_code}: {response.text}')
            elif json.loads(response.text)['top'] != EXPECTED[name]:
                response.failure('another answer than that of Session')
