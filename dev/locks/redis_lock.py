#!/usr/bin/python3
"""Runs a command under the lock of redis-py: redis_lock.py WAIT NAME COMMAND...

The lock is a key with a time to live, which is not renewed. Exits with 75 if it is not free within
WAIT seconds. For dev/prove.
"""
import os
import subprocess
import sys

import redis

TIME_TO_LIVE = 5  # seconds


def main():
    wait, name, command = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    client = redis.Redis.from_url(os.environ["REDIS_URL"])
    lock = client.lock(name, timeout=TIME_TO_LIVE, blocking_timeout=wait, sleep=0.02)
    if not lock.acquire():
        return 75
    try:
        return subprocess.call(command)
    finally:
        try:
            lock.release()
        except redis.exceptions.LockError as error:
            print(f"the lock was lost: {error}", file=sys.stderr)


sys.exit(main())
