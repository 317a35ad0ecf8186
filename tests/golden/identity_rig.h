// The tiny model and the requests that the identities are shown on, for every
// backend that exists.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/golden/golden_support.h"
#include "tests/testing/temp_dir.h"

namespace kf::testing {

// "reference", and the CPU's SIMD levels on this machine.
std::vector<std::string> BackendNames();
std::unique_ptr<Backend> MakeBackend(const std::string& name);

using KeptPositions = std::vector<std::vector<std::vector<int32_t>>>;
KeptPositions Positions(const engine::CacheState& state);

// Tokens, and what was kept after the prompt and at the end.
void ExpectSameKept(const Outcome& a, const Outcome& b);
// These, logprobs and scores, bit for bit.
void ExpectSameBits(const Outcome& a, const Outcome& b);

// With a backend's name for parameter; the default CPU backend without.
class IdentityRig : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int32_t kLayers = 3;
  static constexpr int32_t kHeads = 8;
  static constexpr int32_t kKvHeads = 2;
  static constexpr int32_t kGroup = kHeads / kKvHeads;
  static constexpr int32_t kNew = 40;  // T

  IdentityRig();

  // By test parameter if there is one, else the default.
  EngineSetup BackendSetup() const;
  // Keyformer at half of an n-token prompt, in the paper's setting.
  static engine::Request MakeRequest(int32_t n, uint32_t salt = 0);
  // The same in every scope, and with either score norm.
  static std::vector<engine::Request> Variants(int32_t n);

  Outcome Run(const engine::Request& request) const {
    return RunAll({request}).front();
  }
  // Together.
  std::vector<Outcome> RunAll(
      const std::vector<engine::Request>& requests) const;
  // Alone, together, and with prompts in slices of 32 and 96; sets engine_.
  void ExpectBatchAndSlicesChangeNoBit(
      const std::function<EngineSetup()>& make_setup,
      const std::vector<engine::Request>& requests);

  TempDir folder_;
  std::string model_path_;
  std::unique_ptr<engine::Engine> engine_;  // of the test
};

std::string NameOfBackend(const ::testing::TestParamInfo<std::string>& backend);

}  // namespace kf::testing
