"""Compression methods, one file each; installed as `kvbench.methods`."""
