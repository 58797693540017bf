// This file has a flag for code that uses OpenMP: this process is the child of
// a fork.
#pragma once
#include <pthread.h>

namespace d2lbert {
namespace {

// True in a child process, for the thread that called fork. The parent's other
// threads do not exist in the child, and libgomp would wait for them forever.
// The handler runs in the child process, in the thread that called fork.
thread_local bool has_forked = false;
const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { has_forked = true; });

}  // namespace
}  // namespace d2lbert
