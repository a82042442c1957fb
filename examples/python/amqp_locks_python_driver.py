#!/usr/bin/env python3
"""Answers the requests of lockkeeper-prove with the library amqp-locks-python, which is used as
it is: SRC is a checkout of it, and pika must be 0.13.

    lockkeeper-prove speak --driver 'SRC=... python3 examples/python/amqp_locks_python_driver.py'
"""
import collections, collections.abc, json, os, sys

def library():
    """The library's class and pika, without what stops them from running today."""
    for name in ("Callable", "Mapping", "MutableMapping", "Iterable", "Sequence"):
        # pika 0.13 looks for these names where Python had them before 3.10.
        setattr(collections, name, getattr(collections.abc, name))
    sys.path.insert(0, os.environ["SRC"])
    import pika
    from rabbitlock.semaphore import Semaphore
    return Semaphore, pika.URLParameters(os.environ["AMQP_URL"])

locks = {}

def answer(request):
    verb, name = request["do"], request["lock"]
    if name not in locks:
        locks[name] = Semaphore(name, url)
    it = locks[name]
    if verb == "acquire":
        slot = it.ensure_semaphore_held()
        return {"ok": {"slot": slot}} if slot else {"fail": "full"}
    if verb == "verify":
        return {"ok": {}} if it.ensure_semaphore_held() else {"fail": "lost"}
    if verb == "release":
        it.ensure_semaphore_released()
        return {"ok": {}}
    if verb == "resize":  # it only knows differences
        by = request["slots"] - it._get_max_semaphore()
        return {"ok": {}} if by == 0 or it.adjust_semaphore(by) else {"fail": "busy"}
    if verb == "destroy":
        it.ensure_semaphore_destroyed()
        return {"ok": {}}
    return {"fail": "unsupported"}

if __name__ == "__main__":
    out, sys.stdout = sys.stdout, sys.stderr  # the library prints
    Semaphore, url = library()
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:
            reply = {"info": repr(error)}  # it may have been done
        print(json.dumps(reply), file=out, flush=True)
