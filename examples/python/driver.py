#!/usr/bin/env python3
"""Answers the requests of lockkeeper-prove, one JSON object a line, with the clients of this
folder. To copy from for clients in other languages.

    lockkeeper-prove speak --driver 'python3 examples/python/driver.py ExclusiveConsumer'

The protocol is ExclusiveQueue (the default), ExclusiveConsumer or Token. It does not resize the
lock, so another driver must: `lockkeeper drive`.
"""
import importlib, json, os, select, sys

from pika.exceptions import AMQPError

from under_lock import LockError, close

CLIENTS = {"ExclusiveQueue": ("guideline_client", "GuidelineSlot"),
           "ExclusiveConsumer": ("exclusive_consumer_client", "ConsumerSlot"),
           "Token": ("token_client", "Token")}
Lock = None  # the client's class
held = None  # what this process holds

def acquire(request):
    global held
    it = Lock(os.environ["AMQP_URL"], request["lock"])
    try:
        acquired = it.acquire(request.get("wait_ms", 0) / 1000)
    except LockError as error:
        return {"fail": "full" if error.code == 81 else str(error)}
    if not acquired:
        close(it.hold)
        return {"fail": "full"}
    held = it
    return {"ok": {"slot": it.number} if hasattr(it, "number") else {"token": it.id}}

def verify(request):
    try:
        return {"ok": {"draining": held.verify() == "draining"}}
    except AMQPError as error:
        lose()  # its connection has ended, or its queue is gone
        return {"fail": repr(error)}

def lose():
    global held
    it, held = held, None
    close(it.hold)

def release(request):
    global held
    it, held = held, None
    it.release()
    return {"ok": {}}

def answer(request):
    if request["do"] == "acquire" and not held:
        return acquire(request)
    if request["do"] in ("verify", "release"):
        return globals()[request["do"]](request) if held else {"fail": "not held"}
    return {"fail": "unsupported"}

def lines():
    """The lines of stdin. While it holds, sends heartbeats and reports a loss."""
    while True:
        while held and not select.select([sys.stdin], [], [], 0.2)[0]:
            try:
                held.hold.process_data_events(time_limit=0)
                if held.lost:
                    raise AMQPError(held.lost)
            except AMQPError as error:
                lose()
                print(json.dumps({"lost": repr(error)}), flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line

if __name__ == "__main__":
    module, kind = CLIENTS[(sys.argv[1:] or ["ExclusiveQueue"])[0]]
    Lock = getattr(importlib.import_module(module), kind)
    for line in lines():
        try:
            reply = answer(json.loads(line))
        except Exception as error:
            reply = {"info": repr(error)}  # it may have been done
        print(json.dumps(reply), flush=True)
