#!/usr/bin/env python3
"""Acquires and releases a lock with the library amqp-locks-python, for the comparison in
crates/bench/src/peers.rs, which describes the requests that it reads from standard input. SRC is
a checkout of the library. It cannot wait, so this program tries every 100 ms.
"""
import os, pathlib, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples" / "python"))
from amqp_locks_python_driver import library

def acquire(lock):
    while True:
        try:
            if lock.ensure_semaphore_held():
                return time.time_ns()
        except ZeroDivisionError:  # its pause after a lost race has a random divisor
            pass
        time.sleep(0.1)

def release(lock):
    begun = time.time_ns()
    lock.ensure_semaphore_released()
    return begun

def run(lock, millis):
    cycles, end = 0, time.monotonic() + millis / 1000
    while time.monotonic() < end:
        acquire(lock)
        release(lock)
        cycles += 1
    return cycles

if __name__ == "__main__":
    out, sys.stdout = sys.stdout, sys.stderr  # the library prints
    os.environ["AMQP_URL"] = os.environ["LOCKER_URL"]
    Semaphore, url = library()
    lock = Semaphore(os.environ["LOCKER_LOCK"], url)
    for line in sys.stdin:
        verb, *rest = line.split()
        if verb == "create":
            answer = int(lock.adjust_semaphore(1))
        elif verb == "run":
            answer = run(lock, int(rest[0]))
        else:
            answer = {"acquire": acquire, "release": release}[verb](lock)
        print(answer, file=out, flush=True)
