package valkey
