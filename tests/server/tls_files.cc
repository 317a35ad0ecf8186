#include "tests/server/tls_files.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <stdexcept>

namespace kf::testing {
namespace {

void Require(bool good) {
  if (!good) throw std::runtime_error("cannot make a test certificate");
}

void AddExtension(X509* cert, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, cert, cert, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)>
      extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value),
                X509_EXTENSION_free);
  Require(extension != nullptr && X509_add_ext(cert, extension.get(), -1) == 1);
}

}  // namespace

TlsPair MakeTlsPair(const std::string& folder, const std::string& name) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> cert(X509_new(), X509_free);
  Require(key != nullptr && cert != nullptr);
  X509_set_version(cert.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), 86400);
  X509_set_pubkey(cert.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(cert.get());
  X509_NAME_add_entry_by_txt(
      subject, "CN", MBSTRING_ASC,
      reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(cert.get(), subject);
  AddExtension(cert.get(), NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(cert.get(), NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  Require(X509_sign(cert.get(), key.get(), EVP_sha256()) > 0);

  TlsPair pair{folder + "/" + name + ".key", folder + "/" + name + ".crt"};
  const std::unique_ptr<FILE, int (*)(FILE*)> key_file(
      std::fopen(pair.key_path.c_str(), "w"), std::fclose);
  const std::unique_ptr<FILE, int (*)(FILE*)> cert_file(
      std::fopen(pair.cert_path.c_str(), "w"), std::fclose);
  Require(key_file != nullptr && cert_file != nullptr);
  Require(PEM_write_PrivateKey(key_file.get(), key.get(), nullptr, nullptr, 0,
                               nullptr, nullptr) == 1);
  Require(PEM_write_X509(cert_file.get(), cert.get()) == 1);
  return pair;
}

}  // namespace kf::testing
