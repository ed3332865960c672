# The authority of the lab, for programs that do not ask the system.
export GIT_SSL_CAINFO=/etc/ssl/certs/ca-certificates.crt
export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
export PIP_CERT=/etc/ssl/certs/ca-certificates.crt
export CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt
export GIT_TERMINAL_PROMPT=0
