output "bucket" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.this.id
}

output "read_policy" {
  description = "What who reads weights may do, and no more: an IAM policy in JSON."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Find"
        Effect   = "Allow"
        Action   = ["s3:ListBucket"]
        Resource = [aws_s3_bucket.this.arn]
      },
      {
        Sid      = "Read"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = ["${aws_s3_bucket.this.arn}/*"]
      },
      {
        Sid      = "Decrypt"
        Effect   = "Allow"
        Action   = ["kms:Decrypt"]
        Resource = [var.kms_key_arn]
      },
    ]
  })
}
