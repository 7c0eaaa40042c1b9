output "head_instance_id" {
  description = "For `aws ssm start-session --target`."
  value       = aws_instance.head.id
}

output "weights_bucket" {
  description = "Where the weights belong."
  value       = module.weights.bucket
}

output "url" {
  description = "Where clients find the service; null without a domain."
  value       = var.domain == null ? null : "https://${var.domain.name}"
}
