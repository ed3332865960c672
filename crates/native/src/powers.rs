//! What a run may touch: the pure decision behind every trapped system call.
