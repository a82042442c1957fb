#!/usr/bin/env python3
"""Answers the requests of lockkeeper-prove with a client that declares B without arguments and
releases it by closing its connection. That excludes on RabbitMQ, but not on Apache Qpid Broker-J
(docs/brokers.md). To show the difference, not to copy from: it doesn't verify.

    lockkeeper-prove run --driver 'python3 examples/python/plain_driver.py' \\
        --protocol ExclusiveQueue --slots 1 --clients 8 --no-faults
"""
import json, os, random, sys, time

import pika
from pika.exceptions import AMQPError

held = None  # the connection that owns B, and the number of the slot

def close(connection):
    try:
        connection.close()
    except AMQPError:
        pass  # Qpid closes it when it refuses a declare

def declare(connection, queue, **options):
    try:
        connection.channel().queue_declare(queue, **options)
        return True
    except AMQPError:
        return False

def attempt(lock):
    """Tries each slot on a connection of its own, up to the first that does not exist."""
    slot, exists = 0, True
    while exists:
        slot += 1
        connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
        a, b = f"{lock}-{slot}-A", f"{lock}-{slot}-B"
        exists = declare(connection, a, passive=True)
        if exists and declare(connection, b, exclusive=True) and declare(connection, a, passive=True):
            return connection, slot
        close(connection)

def acquire(request):
    global held
    end = time.monotonic() + request.get("wait_ms", 0) / 1000
    held = attempt(request["lock"])
    while not held and time.monotonic() < end:
        time.sleep(random.uniform(0, 0.02))
        held = attempt(request["lock"])
    return {"ok": {"slot": held[1]}} if held else {"fail": "full"}

def answer(request):
    global held
    if request["do"] == "acquire":
        return {"fail": "held"} if held else acquire(request)
    if request["do"] == "release":
        if not held:
            return {"fail": "not held"}
        (connection, _), held = held, None
        close(connection)
        return {"ok": {}}
    return {"fail": "unsupported"}

if __name__ == "__main__":
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:
            reply = {"info": repr(error)}  # it may have been done
        print(json.dumps(reply), flush=True)
