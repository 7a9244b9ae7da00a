"""Object storage of a remote: an S3 bucket, or a directory."""
