"""Clients of protocol Token, after docs/protocols/token.md: right ones, and ones with one fault
each."""
import random

from pika.exceptions import AMQPError

from client import FULL, Client

class Right(Client):
    prefetch = 1

    def opened(self):
        self.tag, self.deliveries = None, []
        self.channel.basic_qos(prefetch_count=self.prefetch)
        self.channel.add_on_cancel_callback(self.cancelled)

    def queue(self):
        return f"{self.lock}.semaphore"

    def attempt(self):
        """Consumes until it has a token, or until full() ends the consumer."""
        if self.tag is None:
            self.tag = self.channel.basic_consume(self.queue(), self.got)
        self.connection.process_data_events(time_limit=0)
        if not self.deliveries:
            return None
        got = self.deliveries.pop(0)
        self.round_trip()  # the delivery may have taken long
        return got

    def got(self, channel, method, properties, body):
        self.deliveries.append((method.delivery_tag, body.decode()))

    def full(self):
        # Pika rejects later deliveries.
        self.channel.basic_cancel(self.tag)
        self.tag, self.deliveries = None, []
        return super().full()

    def cancelled(self, method):
        self.gone = "the token queue was deleted"

    def describe(self, got):
        return {"token": got[1]}

    def round_trip(self):
        self.channel.queue_declare(self.queue(), passive=True)

    def check(self):
        if self.gone:
            raise AMQPError(self.gone)
        self.round_trip()
        return False

    def give_back(self, got):
        if self.tag:
            self.channel.basic_cancel(self.tag)  # otherwise the token would come back
            self.tag = None
        self.put_back(got[0])
        self.round_trip()

    def put_back(self, delivery):
        self.channel.basic_reject(delivery, requeue=True)

# ---------------------------------------------------------------- unusual

class Nacks(Right):
    def put_back(self, delivery):
        self.channel.basic_nack(delivery, requeue=True)

class Recovers(Right):
    def put_back(self, delivery):
        self.channel.basic_recover(requeue=True)

class ClosesItsChannel(Right):
    def give_back(self, got):
        self.channel.close()
        self.channel = self.connection.channel()
        self.opened()

class ClosesItsConnection(Right):
    def give_back(self, got):
        self.drop()

class ReportsNoToken(Right):
    def describe(self, got):
        return {}

class Gets(Right):
    def attempt(self):
        method, _, body = self.channel.basic_get(self.queue())
        if method is None:
            return None
        return method.delivery_tag, body.decode()

    def full(self):
        return FULL

class NoRoundTrip(Right):
    """After a delivery."""
    def attempt(self):
        self.round_trip, round_trip = lambda: None, self.round_trip
        try:
            return super().attempt()
        finally:
            self.round_trip = round_trip

# ---------------------------------------------------------------- wrong

class AcksSeldom(Right):
    def put_back(self, delivery):
        if random.random() < 0.05:
            self.channel.basic_ack(delivery)
        else:
            super().put_back(delivery)

class RejectsForGood(Right):
    def put_back(self, delivery):
        self.channel.basic_reject(delivery, requeue=random.random() > 0.05)

class NoCancel(Right):
    def give_back(self, got):
        self.put_back(got[0])
        self.round_trip()

class PrefetchesTwo(Right):
    prefetch = 2

    def give_back(self, got):
        super().give_back(got)
        self.deliveries = []

class TakesTwo(Right):
    """It reports one."""
    prefetch = 2

    def attempt(self):
        got = super().attempt()
        if got:
            self.sleep(0.02)
            self.second = self.deliveries[:1]
            self.deliveries = []
            self.channel.basic_cancel(self.tag)
            self.tag = None
        return got

    def give_back(self, got):
        for delivery, _ in self.second:
            self.put_back(delivery)
        super().give_back(got)

class KeepsItsConsumer(Right):
    """After a timeout."""
    def full(self):
        return FULL
