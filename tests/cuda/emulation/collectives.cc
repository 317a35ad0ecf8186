// Where threads meet: warp collectives and barriers, with the checks that all
// who should come do, and to the same place.
#include "tests/cuda/emulation/block.h"

namespace kf::emu {

void WarpOp(Op& op) {
  Fiber& f = ThisFiber();
  Warp& warp = ThisWarp();
  const uint32_t bit = 1U << f.lane;
  ++counters().collectives;
  if ((op.mask & bit) == 0) {
    Fail("divergent warp: %s %s:%d: lane %u is not in its own mask %08x",
         op.what, op.site.file, op.site.line, f.lane, op.mask);
  }
  if (const uint32_t gone = op.mask & ~warp.live; gone != 0) {
    Fail(
        "divergent warp: %s %s:%d: mask %08x names lanes %08x that have "
        "exited or do not exist",
        op.what, op.site.file, op.site.line, op.mask, gone);
  }
  warp.op[f.lane] = &op;
  warp.arrived |= bit;
  if ((warp.arrived & op.mask) != op.mask) {
    f.wait = Wait::kWarp;
    f.site = op.site;
    f.what = op.what;
    warp.ready &= ~bit;
    SwitchToHost(f);
    return;
  }
  for (uint32_t rest = op.mask; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const Op& other = *warp.op[lane];
    if (other.fn != op.fn || other.mask != op.mask ||
        !(other.site == op.site)) {
      Fail(
          "divergent warp: lane %u at %s mask %08x %s:%d, lane %d at %s mask "
          "%08x %s:%d",
          f.lane, op.what, op.mask, op.site.file, op.site.line, lane,
          other.what, other.mask, other.site.file, other.site.line);
    }
  }
  Block& b = ThisBlock();
  b.in_op = true;
  op.fn(warp.op, op.mask);
  b.in_op = false;
  if (op.orders_memory && (op.mask & warp.live) == warp.live) ++warp.epoch;
  warp.arrived &= ~op.mask;
  warp.ready |= op.mask;
  const unsigned first = f.linear / kWarpThreads * kWarpThreads;
  for (uint32_t rest = op.mask; rest != 0; rest &= rest - 1) {
    b.fibers[first + static_cast<unsigned>(__builtin_ctz(rest))].wait =
        Wait::kReady;
  }
}

int Barrier(int value, Site site) {
  Block& b = ThisBlock();
  Fiber& f = ThisFiber();
  ++counters().collectives;
  if (b.live != b.threads) {
    Fail("divergent barrier %s:%d: %u of %u threads have exited", site.file,
         site.line, b.threads - b.live, b.threads);
  }
  if (b.at_barrier != 0 && !(site == b.barrier_site)) {
    Fail("divergent barrier: this thread at %s:%d, %u others at %s:%d",
         site.file, site.line, b.at_barrier, b.barrier_site.file,
         b.barrier_site.line);
  }
  b.barrier_site = site;
  b.barrier_sum += value;
  ++f.barriers;
  f.site = site;
  if (++b.at_barrier < b.live) {
    f.wait = Wait::kBarrier;
    ThisWarp().ready &= ~(1U << f.lane);
    SwitchToHost(f);
    return b.last_barrier_sum;
  }
  b.at_barrier = 0;
  b.last_barrier_sum = b.barrier_sum;
  b.barrier_sum = 0;
  for (Warp& warp : b.warps) warp.ready = warp.live;
  for (unsigned i = 0; i < b.threads; ++i) b.fibers[i].wait = Wait::kReady;
  return b.last_barrier_sum;
}

}  // namespace kf::emu
