//! Servers that are down and come back: what status says meanwhile.
