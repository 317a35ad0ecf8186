// The name that a debugger, `top -H` and /proc show for the calling thread.
#pragma once

#if defined(__linux__)
#include <pthread.h>
#endif

namespace kf {

// At most 15 characters. Without effect where threads have no names.
inline void NameThread([[maybe_unused]] const char* name) {
#if defined(__linux__)
  pthread_setname_np(pthread_self(), name);
#endif
}

}  // namespace kf
