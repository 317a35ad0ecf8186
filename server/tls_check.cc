#include "server/tls_check.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "kernels/core/status.h"

namespace kf::server {
namespace {

absl::Status Bad(const char* flag, const std::string& path, const char* what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": ", path, ": ", what));
}

}  // namespace

absl::Status CheckTlsFiles(const TlsOptions& options) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(
      SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  KF_CHECK(context != nullptr);
  if (SSL_CTX_use_certificate_chain_file(context.get(),
                                         options.cert_path.c_str()) != 1) {
    return Bad("tls_cert", options.cert_path, "no PEM certificate to be read");
  }
  // Never asks for a pass phrase on the terminal.
  SSL_CTX_set_default_passwd_cb(context.get(),
                                [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_PrivateKey_file(context.get(), options.key_path.c_str(),
                                  SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return Bad("tls_key", options.key_path,
               "no PEM key that belongs to the certificate");
  }
  if (!options.client_ca_path.empty() &&
      SSL_CTX_load_verify_locations(
          context.get(), options.client_ca_path.c_str(), nullptr) != 1) {
    return Bad("tls_client_ca", options.client_ca_path,
               "no PEM certificates to be read");
  }
  return absl::OkStatus();
}

}  // namespace kf::server
