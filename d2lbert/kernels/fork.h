// This file has a flag for code that uses OpenMP. In a child process of a fork,
// the parent's OpenMP threads do not exist, and libgomp would wait for them
// forever. So the thread that called fork computes alone there.
#pragma once
#include <pthread.h>

namespace d2lbert {
namespace {

// True in a child process, for the thread that called fork.
thread_local bool is_fork_child = false;
// Register a function that runs in each child process, in the thread that
// called fork.
const int atfork_status =
    pthread_atfork(nullptr, nullptr, [] { is_fork_child = true; });

}  // namespace
}  // namespace d2lbert
