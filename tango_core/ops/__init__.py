"""Shared arithmetic of the pruning methods: pure functions on tensors."""
