#!/usr/bin/env python3
"""Runs a command while it holds a slot of a persistent semaphore in RabbitMQ.

    AMQP_URL=... guideline_client.py [--timeout SECONDS] [--priority N] LOCK -- COMMAND...

To read, to copy from and to import (with slots.py and under_lock.py beside it): what
docs/protocols/persistent-semaphore.md requires, with nothing but pika. The command finds
LOCK_NAME, LOCK_SLOT and LOCK_TOKEN, the fencing token, in its environment. Exits as the
command does, or 64: a lock of another protocol, 69: no broker, 75: no slot, 80: lost, 81: no
such lock.
"""
import pika
from pika.exceptions import (
    AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker, NackError, UnroutableError)

from slots import Slot
from under_lock import connect, main, now

class GuidelineSlot(Slot):
    """A second declare of a holder queue succeeds on the connection that has it, so a
    connection must hold only one slot."""

    client, protocol = "guideline", "ExclusiveQueue"

    def __init__(self, url, name, reason=""):
        super().__init__(url, name, reason)
        self.facts["x-max-length"] = 0  # otherwise probes would pile up
        self.channel = self.hold.channel()
        self.connect_probe()

    def connect_probe(self):
        """A probe may end its connection, so that is not the one that waits."""
        self.searching = [self.other, connect(self.url, self.title)]
        self.probe = self.searching[1].channel()
        self.probe.confirm_delivery()

    def exists(self, queue):
        """By a publish, which closes no channel, and doesn't say whose it is."""
        try:
            gone = pika.BasicProperties(expiration="0")
            self.probe.basic_publish("", queue, b"", gone, mandatory=True)
            return True
        except UnroutableError:
            return False
        except NackError:  # it rejects messages, or has just been deleted
            pass
        except ConnectionClosedByBroker as closed:
            if closed.reply_code != 506:  # deleted while the message was routed, since 4.2
                raise
            self.connect_probe()
        return self.declare(queue, passive=True) != 404

    def declare(self, queue, **options):
        """0, or 404: there is none, or 405: another connection's. That closes the
        channel, so only that is replaced."""
        try:
            self.channel.queue_declare(queue, **options)
            return 0
        except ChannelClosedByBroker as refused:
            self.channel = self.hold.channel()
            if refused.reply_code in (404, 405):
                return refused.reply_code
            raise

    def free(self):
        slot = 1
        while self.exists(f"{self.name}-{slot}-A"):
            if not self.exists(f"{self.name}-{slot}-B"):
                yield slot
            self.slots, slot = slot, slot + 1

    def take(self, slot):
        self.number, self.holder, self.proven = slot, f"{self.name}-{slot}-B", now()
        if self.declare(self.holder, exclusive=True, arguments=self.facts) != 0:
            return False
        # The slot may have been removed during the declare.
        if self.declare(f"{self.name}-{slot}-A", passive=True) != 0:
            self.give_back()
            return False
        return True

    def verify(self):
        """Only that our connection may look at B proves that the slot is ours. A is
        gone when the slot is draining: it stays ours until we release it."""
        sent = now()
        if self.declare(self.holder, passive=True) != 0:
            raise AMQPError("the holder queue is gone")
        self.proven = sent
        draining = self.declare(f"{self.name}-{self.number}-A", passive=True)
        return "draining" if draining else "held"

    def give_back(self):
        self.channel.queue_delete(self.holder)  # closing only the channel would not

if __name__ == "__main__":
    main(GuidelineSlot)
