// Package s3sdk tests package s3rdma with the clients that Go programs have for S3, aws-sdk-go-v2
// and minio-go. It is a module of its own, so that these do not become dependencies of the library.
package s3sdk
