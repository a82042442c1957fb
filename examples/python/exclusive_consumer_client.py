#!/usr/bin/env python3
"""Runs a command while it holds a slot of a semaphore of protocol ExclusiveConsumer.

    AMQP_URL=... exclusive_consumer_client.py [--timeout SECONDS] [--priority N] LOCK -- COMMAND...

To read, to copy from and to import (with slots.py and under_lock.py beside it): what
docs/protocols/exclusive-consumer.md requires, with nothing but pika. The command finds
LOCK_NAME, LOCK_SLOT and LOCK_TOKEN, the fencing token, in its environment. Exits as the
command does, or 64: a lock of another protocol, 69: no broker, 75: no slot, 80: lost, 81: no
such lock.
"""
import sys

from pika.exceptions import AMQPError, ChannelClosedByBroker

from slots import Slot
from under_lock import main, now

class ConsumerSlot(Slot):
    client, protocol = "consumer", "ExclusiveConsumer"

    def __init__(self, url, name, reason=""):
        super().__init__(url, name, reason)
        self.looking = self.hold.channel()

    def consumers(self, queue):
        """How many consume from it; None: there is no such queue, which closes a channel."""
        try:
            return self.looking.queue_declare(queue, passive=True).method.consumer_count
        except ChannelClosedByBroker as refused:
            self.looking = self.hold.channel()
            if refused.reply_code != 404:
                raise

    def free(self):
        slot = 1
        while (consumers := self.consumers(f"{self.name}-{slot}-C")) is not None:
            # The queue of a removed slot stays until its holder has released it.
            if consumers == 0 and self.consumers(f"{self.name}-{slot}-A") is not None:
                yield slot
            self.slots, slot = slot, slot + 1

    def take(self, slot):
        """On a channel of its own: whatever closes that ends the consumer."""
        self.number, self.holder, self.proven = slot, f"{self.name}-{slot}-C", now()
        self.lost, self.doubt, self.channel = None, False, self.hold.channel()
        self.channel.add_on_cancel_callback(self.gone)
        try:
            self.channel.basic_consume(
                self.holder, self.told, auto_ack=True, exclusive=True, arguments=self.facts,
                consumer_tag="lockkeeper-" + self.facts["x-lockkeeper-id"])
            # A quorum queue permits a second exclusive consumer. This declare rejects
            # such a queue (406).
            as_made = {"x-max-length": 0, "x-queue-type": "classic"}
            self.channel.queue_declare(self.holder, durable=True, arguments=as_made)
        except ChannelClosedByBroker as refused:
            if refused.reply_code == 404 or "exclusive use" in refused.reply_text:
                return False
            raise
        # The slot may have been removed before the consume, or not exist yet.
        if self.consumers(f"{self.name}-{slot}-A") is None:
            self.give_back()
            return False
        return True

    def told(self, channel, method, properties, body):  # a message from an administrator
        if body.startswith(b"revoke"):
            self.lost = body.decode("utf-8", "replace")
        elif body == b"drain":  # the slot was removed, but is ours until we release it
            print(f"slot {self.number} of {self.name} is draining", file=sys.stderr)
        else:
            self.doubt = True  # for example a probe's empty message: verify

    def gone(self, method):  # the broker cancelled the consumer
        self.lost = "its queue was deleted"

    def verify(self):
        """On the consumer's channel: that answers only while we consume. A is gone when the
        slot is draining: it stays ours until we release it."""
        sent, self.doubt = now(), False
        consumers = self.channel.queue_declare(self.holder, passive=True).method.consumer_count
        if self.lost or consumers == 0:
            raise AMQPError(self.lost or "nobody consumes from the holder queue")
        self.proven = sent
        return "draining" if self.consumers(f"{self.name}-{self.number}-A") is None else "held"

    def give_back(self):
        self.channel.close()  # ends the consumer; cancelling it does as well

if __name__ == "__main__":
    main(ConsumerSlot)
