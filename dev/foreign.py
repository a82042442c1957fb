"""The run of dev/foreign: amqp-locks-python, as it is, and `lockkeeper exec` share a
semaphore; a register (a folder a slot, which only one can make) shows two holders of one
slot. Prints the report as Markdown. Arguments: checkout, its commit, lockkeeper."""

import base64
import collections
import collections.abc
import json
import multiprocessing
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

for name in ("Callable", "Mapping", "MutableMapping", "Iterable", "Sequence"):
    # pika 0.13 looks for these names where Python had them before 3.10.
    setattr(collections, name, getattr(collections.abc, name))

import pika

SOURCE, COMMIT, LOCKKEEPER = sys.argv[1:]
sys.path.insert(0, SOURCE)
import rabbitlock.semaphore

rabbitlock.semaphore.print = lambda *_: None

LOCK, SLOTS, EACH, ROUNDS = "foreign", 3, 4, 25


def semaphore():
    return rabbitlock.semaphore.Semaphore(LOCK, pika.URLParameters(os.environ["AMQP_URL"]))


def exec_under_lock(arguments, line, **options):
    lock = ["--quiet", "--semaphore", LOCK, "--profile", "AmqpLocksPython"]
    command = [LOCKKEEPER, "exec", *lock, *arguments, "--", "sh", "-c", line]
    return subprocess.Popen(command, **options)


def their_rounds(register, results):
    counts = collections.Counter()

    def said(*words):  # the library prints each lost race
        counts["races lost"] += "Race condition victim!" in words

    rabbitlock.semaphore.print = said
    lock, rounds = semaphore(), 0
    while rounds < ROUNDS:
        try:
            slot = lock.ensure_semaphore_held()
        except Exception as error:  # any error of the library belongs in the report
            counts[f"{type(error).__name__}: {error}"] += 1
            lock = semaphore()
            continue
        if not slot:
            time.sleep(random.uniform(0, 0.02))
            continue
        place = os.path.join(register, str(slot))
        try:
            os.mkdir(place)
        except FileExistsError:
            counts["TWO HOLDERS"] += 1
        else:
            time.sleep(random.uniform(0, 0.005))
            os.rmdir(place)
        lock.ensure_semaphore_released()
        rounds += 1
    results.put(counts)


def our_rounds(register, results):
    counts = collections.Counter()
    line = 'mkdir "$PLACE/$LOCK_SLOT" && rmdir "$PLACE/$LOCK_SLOT"'
    for _ in range(ROUNDS):
        environment = dict(os.environ, PLACE=register)
        code = exec_under_lock(["--timeout", "5m"], line, env=environment).wait()
        if code:
            counts["TWO HOLDERS" if code == 1 else f"exec exited with {code}"] += 1
    results.put(counts)


def contention():
    """What went wrong or was noticed, for them and for us, and how long it took."""
    start, (theirs, ours) = time.time(), (multiprocessing.Queue(), multiprocessing.Queue())
    with tempfile.TemporaryDirectory() as register:
        workers = []
        for _ in range(EACH):
            workers.append(multiprocessing.Process(target=their_rounds, args=(register, theirs)))
            workers.append(threading.Thread(target=our_rounds, args=(register, ours)))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(300)
            if worker.is_alive():
                raise SystemExit("a client never ended")
    def add(queue):
        return sum((queue.get() for _ in range(EACH)), collections.Counter())

    return add(theirs), add(ours), time.time() - start


def changes():
    """Each step of both seeing the other's slots and changes: what, and whether so."""
    admin, python = semaphore(), semaphore()

    def refused():
        return exec_under_lock(["--no-wait"], "true", stderr=subprocess.DEVNULL).wait() == 75

    def hold():
        child = exec_under_lock(
            ["--timeout", "10s"], "echo $LOCK_SLOT; read line; echo done",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return child, int(child.stdout.readline())

    def after(seconds, condition):
        end = time.time() + seconds
        while not condition() and time.time() < end:
            time.sleep(0.05)
        return condition()

    yield "with no slots both are refused", not semaphore().ensure_semaphore_held() and refused()
    admin.adjust_semaphore(2)
    yield "it makes 2 slots and takes the first", python.ensure_semaphore_held() == 1
    child, slot = hold()
    yield "we get the second", slot == 2
    yield "then both are refused", not semaphore().ensure_semaphore_held() and refused()
    admin.adjust_semaphore(1)
    other, third = hold()
    yield "it adds a slot, which we get", third == 3
    admin.adjust_semaphore(-2)
    yield "it removes 2: its own slot 1 stays", python.ensure_semaphore_held() == 1
    admin.adjust_semaphore(2)
    yield "grown back, slots 2 and 3 are nobody else's", not semaphore().ensure_semaphore_held()
    admin.adjust_semaphore(-3)
    yield "it removes all: it gives its slot up when it looks", not python.ensure_semaphore_held()
    said = [each.communicate("\n", timeout=10)[0] for each in (child, other)]
    ended = [each.returncode for each in (child, other)]
    yield "our commands run on to their own end", (said, ended) == (["done\n"] * 2, [0, 0])
    yield "destroying leaves no queue", semaphore().ensure_semaphore_destroyed() is None and after(5, lambda: not queues())


def management(path):
    url = urllib.parse.urlsplit(os.environ["RABBITMQ_MANAGEMENT_URL"])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"http://{url.hostname}:{url.port}/api/{path}")
    user = base64.b64encode(f"{url.username}:{url.password}".encode())
    request.add_header("Authorization", f"Basic {user.decode()}")
    return json.load(opener.open(request))


def queues():
    return [queue["name"] for queue in management("queues")]


def quirk(what, provoke):
    try:
        return what, f"returns {provoke()!r}"
    except Exception as error:
        return what, f"throws {type(error).__name__}: {error}"


def quirks():
    first, second = semaphore(), semaphore()
    first._ensure_mutex_acquired()
    yield quirk("`adjust_semaphore` while another has the mutex", lambda: second.adjust_semaphore(1))
    first._ensure_mutex_released()
    yield quirk("`ensure_semaphore_released` with nothing held", semaphore().ensure_semaphore_released)
    holder = semaphore()
    holder.adjust_semaphore(1)
    holder.ensure_semaphore_held()
    holder.adjust_semaphore(1)
    yield quirk("`_held_semaphore` after its holder resized the semaphore", holder._held_semaphore)
    semaphore().ensure_semaphore_destroyed()


def main():
    version = subprocess.run([LOCKKEEPER, "--version"], capture_output=True, text=True).stdout.strip()
    broker = management("overview")["rabbitmq_version"]
    print(f"amqp-locks-python {COMMIT}, pika {pika.__version__}, Python {platform.python_version()}; {version}; RabbitMQ {broker}\n")
    semaphore().adjust_semaphore(SLOTS)
    theirs, ours, seconds = contention()
    semaphore().ensure_semaphore_destroyed()
    print(f"{EACH} processes of each, {ROUNDS} acquisitions a process, {SLOTS} slots: all ended after {seconds:.0f} s.\n")
    print("| | amqp-locks-python | lockkeeper exec |\n| --- | --- | --- |")
    for what in sorted({"TWO HOLDERS", "races lost"} | set(theirs) | set(ours)):
        name = "entered a slot that had a holder" if what == "TWO HOLDERS" else what
        print(f"| {name} | {theirs[what]} | {'-' if what == 'races lost' else ours[what]} |")
    failed = theirs["TWO HOLDERS"] + sum(ours.values())
    print("\n| each other's slots and changes | |\n| --- | --- |")
    for what, so in changes():
        failed += not so
        print(f"| {what} | {'yes' if so else 'NO'} |")
    print("\n| amqp-locks-python by itself | |\n| --- | --- |")
    for what, outcome in quirks():
        print(f"| {what} | {outcome} |")
    sys.exit(failed and "they disagree: see above")


main()
