"""Clients of protocol ExclusiveConsumer, after docs/protocols/exclusive-consumer.md: right ones,
and ones with one fault each."""
import random

from pika.exceptions import AMQPError, ChannelClosedByBroker

from client import Client

class Right(Client):
    exclusive = True

    def a(self, slot):
        return f"{self.lock}-{slot}-A"

    def c(self, slot):
        return f"{self.lock}-{slot}-C"

    def consumers(self, queue):
        """How many consume from it. None: there is no such queue, which closes a channel."""
        try:
            return self.channel.queue_declare(queue, passive=True).method.consumer_count
        except ChannelClosedByBroker as refused:
            self.channel = self.connection.channel()
            if refused.reply_code != 404:
                raise
            return None

    def is_there(self, slot):
        return self.consumers(self.a(slot)) is not None

    def attempt(self):
        slot = 1
        while (consumers := self.consumers(self.c(slot))) is not None:
            if consumers == 0 and self.is_there(slot) and self.take(slot):
                return slot
            slot += 1
        return None

    def take(self, slot):
        self.gone, self.holding = None, self.connection.channel()
        self.holding.add_on_cancel_callback(self.cancelled)
        try:
            self.tag = self.holding.basic_consume(
                self.c(slot), self.told, auto_ack=True, exclusive=self.exclusive)
            self.look_at_type(slot)
        except ChannelClosedByBroker as refused:
            if refused.reply_code == 404 or "exclusive use" in refused.reply_text:
                return False
            raise
        if self.is_there_still(slot):
            return True
        self.give_back(slot)
        return False

    def look_at_type(self, slot):
        as_made = {"x-max-length": 0, "x-queue-type": "classic"}
        self.holding.queue_declare(self.c(slot), durable=True, arguments=as_made)

    def is_there_still(self, slot):
        return self.is_there(slot)

    def told(self, channel, method, properties, body):
        if body.startswith(b"revoke"):
            self.gone = "revoked"

    def cancelled(self, method):
        self.gone = "its queue was deleted"

    def check(self):
        count = self.holding.queue_declare(self.c(self.held), passive=True).method.consumer_count
        if self.gone or count == 0:
            raise AMQPError(self.gone or "nobody consumes")
        return not self.is_there(self.held)

    def give_back(self, slot):
        self.holding.close()

# ---------------------------------------------------------------- unusual

class ReleasesByCancel(Right):
    def give_back(self, slot):
        self.holding.basic_cancel(self.tag)

# ---------------------------------------------------------------- wrong

class SharedConsumers(Right):
    exclusive = False

class NeverLooks(Right):
    def is_there_still(self, slot):
        return True

class NoType(Right):
    def look_at_type(self, slot):
        pass

class DeletesC(Right):
    def give_back(self, slot):
        self.channel.queue_delete(self.c(slot))
        self.gone = None

class DeletesCSeldom(Right):
    def give_back(self, slot):
        super().give_back(slot)
        if random.random() < 0.1:
            self.channel.queue_delete(self.c(slot))

class IgnoresCancel(Right):
    def cancelled(self, method):
        pass

    def told(self, channel, method, properties, body):
        pass
