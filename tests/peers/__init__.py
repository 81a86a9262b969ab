"""The same weights in vitkit and in other libraries: `scripts/test-peers` compares their logits."""
