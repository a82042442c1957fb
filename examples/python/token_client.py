#!/usr/bin/env python3
"""Runs a command while it holds a token of a semaphore of protocol Token.

    AMQP_URL=... token_client.py [--timeout SECONDS] [--priority N] LOCK -- COMMAND...

To read and to copy from: what docs/protocols/token.md requires, with nothing but pika; it
is what the RabbitMQ blog does ("Distributed Semaphores with RabbitMQ"), and how it ends.
Exits as the command does, or 69: no broker, 75: no token, 80: lost.
"""
import argparse, os, signal, subprocess, sys, threading, time

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

HEARTBEAT = 10  # seconds; the broker frees a silent holder after 2 to 3 of them
VALID = 2 * HEARTBEAT * 0.98 - 0.5  # seconds after sending a proof for which the token is ours
VERIFY = 5  # seconds between proofs
KILL_AFTER = 3  # seconds that the command has to end when the token is lost

def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # counts while the machine is suspended

class Token:
    def __init__(self, url, lock):
        self.lock, self.queue = lock, f"{lock}.semaphore"
        self.delivery, self.tag, self.lost = None, None, None
        parameters = pika.URLParameters(url)
        parameters.heartbeat = HEARTBEAT
        parameters.client_properties = {"connection_name": f"token client of {lock}"}
        # This connection never publishes: an alarm blocks publishers, and a message is a
        # token.
        self.hold = pika.BlockingConnection(parameters)
        self.channel = self.hold.channel()
        self.channel.basic_qos(prefetch_count=1)  # otherwise this client would hoard tokens
        self.channel.add_on_cancel_callback(self.gone)

    def acquire(self, timeout, priority):
        """The broker gives a free token to the consumer with the highest priority."""
        until = now() + timeout
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
        self.id = body.decode() if body.isdigit() else None  # the blog's tokens may be any text

    def gone(self, method):  # the broker cancelled the consumer
        self.lost = "the token queue was deleted"

    def announce(self, facts):
        """By a queue that goes with the connection. It says who holds; it holds nothing."""
        if self.id is None:
            return
        channel, name = self.hold.channel(), f"{self.lock}-{self.id}-B"
        try:
            channel.queue_declare(name, exclusive=True, arguments=facts)
        except ChannelClosedByBroker:
            pass  # the last holder's queue is about to be deleted

    def verify(self):
        """On the holding channel: while that is open the broker keeps the token ours,
        and that the queue exists shows that there is a token."""
        sent = now()
        self.channel.queue_declare(self.queue, passive=True)
        self.proven = sent

    def release(self):
        if self.tag:
            self.channel.basic_cancel(self.tag)  # otherwise the token would come straight back
        # Never acknowledged: that would destroy the token.
        self.channel.basic_reject(self.delivery, requeue=True)
        self.verify()
        self.hold.close()

def stop(child):  # and its children
    for sign, patience in ((signal.SIGTERM, KILL_AFTER), (signal.SIGKILL, None)):
        try:
            os.killpg(child.pid, sign)
            child.wait(patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass

def run(token, command):
    os.environ.update(LOCK_NAME=token.lock)
    if token.id:
        os.environ["LOCK_TOKEN_ID"] = token.id
    child = subprocess.Popen(command, start_new_session=True)
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda number, _: os.killpg(child.pid, number))
    def deadline():  # in a separate thread: pika may hang with the network
        while now() < token.proven + VALID - KILL_AFTER:
            time.sleep(0.1)
        stop(child)
        os._exit(80)
    threading.Thread(target=deadline, daemon=True).start()
    try:
        while child.poll() is None:
            token.hold.process_data_events(time_limit=0.05)  # heartbeats, and a loss
            if token.lost:
                raise AMQPError(token.lost)
            if now() > token.proven + VERIFY:
                token.verify()
        token.release()
    except AMQPError as error:
        stop(child)
        print(f"a token of {token.lock} was lost: {error!r}", file=sys.stderr)
        return 80
    return child.returncode if child.returncode >= 0 else 128 - child.returncode

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=float("inf"))
    parser.add_argument("--priority", type=int, default=0)
    parser.add_argument("lock")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    facts = {"x-max-length": 0,
             "x-lockkeeper-id": os.urandom(10).hex(),
             "x-lockkeeper-identity": f"pid {os.getpid()} on {os.uname().nodename}",
             "x-lockkeeper-reason": " ".join(given.command)[:200],
             "x-lockkeeper-since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    try:
        token = Token(os.environ["AMQP_URL"], given.lock)
        if not token.acquire(given.timeout, given.priority):
            sys.exit(75)  # no token is free, or the lock does not exist
        token.announce(facts)
    except AMQPError as error:
        print(f"the broker can't be asked: {error!r}", file=sys.stderr)
        sys.exit(69)
    sys.exit(run(token, given.command))

main()
