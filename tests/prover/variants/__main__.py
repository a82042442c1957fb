"""Clients that deviate from their protocol in one way, and unusual ones that do not, as drivers of
lockkeeper-prove. Each is a class; variants.rs says what the prover must find.

    python3 tests/prover/variants PROTOCOL VARIANT
"""
import sys

import consumers, queues, tokens

MODULES = {"ExclusiveQueue": queues, "ExclusiveConsumer": consumers, "Token": tokens}

if __name__ == "__main__":
    protocol, variant = sys.argv[1:]
    getattr(MODULES[protocol], variant)().serve()
