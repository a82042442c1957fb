#!/usr/bin/env python3
"""Runs a command while it holds a token of a semaphore of protocol Token.

    AMQP_URL=... token_client.py [--timeout SECONDS] [--priority N] LOCK -- COMMAND...

To read, to copy from and to import (with under_lock.py beside it): what
docs/protocols/token.md requires, with nothing but pika. It is what the RabbitMQ blog does
("Distributed Semaphores with RabbitMQ"), and how it ends.
Exits as the command does, or 64: a lock of another protocol, 69: no broker, 75: no token, 80:
lost, 81: no such lock.
"""
from pika.exceptions import ChannelClosedByBroker

from under_lock import check, close, connect, facts, main, now

class Token:
    def __init__(self, url, name, reason=""):
        self.name, self.queue, self.facts = name, f"{name}.semaphore", facts(reason)
        self.delivery, self.tag, self.lost, self.doubt = None, None, None, False
        # This connection never publishes: an alarm blocks publishers, and a message is a
        # token.
        self.hold = connect(url, f"token client of {name}")
        self.channel = self.hold.channel()
        self.channel.basic_qos(prefetch_count=1)  # otherwise this client would hoard tokens
        self.channel.add_on_cancel_callback(self.gone)

    def acquire(self, timeout, priority=0):
        try:
            held = self.acquire_token(timeout, priority)
            if held:
                self.announce()
            return held
        except BaseException:
            close(self.hold)
            raise

    def acquire_token(self, timeout, priority):
        """The broker gives a free token to the consumer with the highest priority."""
        until = now() + timeout
        check(self.hold, self.name, "Token")
        try:
            # Not declared: that would create a semaphore, and a quorum queue rejects it.
            sent = now()
            method, properties, body = self.channel.basic_get(self.queue)
        except ChannelClosedByBroker as refused:
            if refused.reply_code == 404:
                return False
            raise
        if method:
            self.got(self.channel, method, properties, body)
            self.proven = sent
            return True
        order = {"x-priority": priority}
        self.tag = self.channel.basic_consume(self.queue, self.got, arguments=order)
        while self.delivery is None and not self.lost and now() < until:
            self.hold.process_data_events(time_limit=max(0, min(1, until - now())))
        if self.delivery is None:
            # Pika rejects messages that arrived since. A token in a buffer would be lost
            # to all clients.
            self.channel.basic_cancel(self.tag)
            return False
        self.verify()  # the delivery may have taken long
        return True

    def got(self, channel, method, properties, body):
        self.delivery = method.delivery_tag
        # The blog's tokens may be any text, and those of others are all 1.
        self.id = body.decode() if body.isdigit() and len(body) >= 16 else None

    def gone(self, method):  # the broker cancelled the consumer
        self.lost = "the token queue was deleted"

    def announce(self):
        """By a queue that goes with the connection. It says who holds; it holds nothing."""
        self.environment = {"LOCK_NAME": self.name}
        if self.id is None:
            return
        self.environment["LOCK_TOKEN_ID"] = self.id
        channel, name = self.hold.channel(), f"{self.name}-{self.id}-B"
        try:
            arguments = {**self.facts, "x-max-length": 0}
            channel.queue_declare(name, exclusive=True, arguments=arguments)
        except ChannelClosedByBroker:
            pass  # the last holder's queue is about to be deleted

    def verify(self):
        """On the holding channel: while that is open the broker keeps the token ours,
        and that the queue exists shows that there is a token."""
        sent = now()
        self.channel.queue_declare(self.queue, passive=True)
        self.proven = sent

    def release(self):
        try:
            if self.tag:
                self.channel.basic_cancel(self.tag)  # otherwise the token would come back
            # Never acknowledged: that would destroy the token.
            self.channel.basic_reject(self.delivery, requeue=True)
            self.verify()
        finally:
            close(self.hold)

if __name__ == "__main__":
    main(Token)
