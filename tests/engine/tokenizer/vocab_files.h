// Tokenizers for tests, from the checked-in vocabularies and the default model.
#pragma once

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>

#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/default_model.h"

namespace kf::engine {

inline std::string DataPath(const std::string& name) {
  return std::string(KF_SOURCE_DIR) + "/tests/data/" + name;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline nlohmann::json ReadJson(const std::string& name) {
  return nlohmann::json::parse(ReadFile(DataPath(name)));
}

// Throws with the status. The file is closed again: tokenizers stand alone.
inline std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& path) {
  auto file = GgufFile::Open(path);
  if (!file.ok()) throw std::runtime_error(file.status().ToString());
  auto tokenizer = Tokenizer::Load(**file);
  if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().ToString());
  return *std::move(tokenizer);
}

inline std::unique_ptr<Tokenizer> LoadVocab(const std::string& name) {
  return LoadTokenizer(DataPath("vocab/ggml-vocab-" + name + ".gguf"));
}

// The default model's, loaded once.
inline const Tokenizer& SmolLm() {
  static const std::unique_ptr<Tokenizer> tokenizer =
      LoadTokenizer(testing::DefaultModelPath());
  return *tokenizer;
}

}  // namespace kf::engine
