"""Runs work under a slot, as `--exec` of lockkeeper-prove: work that goes on after its wrapper.

    wrapper.py LOCK WAIT COMMAND...
"""
import os, subprocess, sys, time

from queues import Right

def main():
    client, request = Right(), {"lock": sys.argv[1], "wait_ms": 1000 * float(sys.argv[2])}
    if client.acquire(request).get("fail"):
        sys.exit(75)
    environment = {**os.environ, "LOCK_SLOT": str(client.held)}
    work = subprocess.Popen(sys.argv[3:], env=environment, start_new_session=True)
    while work.poll() is None:
        try:
            client.sleep(0.02)
        except Exception:
            sys.exit(80)  # without a word to the work
    client.release(request)
    sys.exit(work.returncode)

main()
