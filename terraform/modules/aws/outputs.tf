output "cluster_name" {
  description = "For `aws eks update-kubeconfig --name`."
  value       = aws_eks_cluster.this.name
}

output "cluster_endpoint" {
  description = "Address of the Kubernetes API."
  value       = aws_eks_cluster.this.endpoint
}

output "cluster_ca" {
  description = "Authority of the Kubernetes API, PEM in base64."
  value       = aws_eks_cluster.this.certificate_authority[0].data
}

output "weights_bucket" {
  description = "Where the weights belong."
  value       = module.weights.bucket
}

output "autoscaler_role_arn" {
  description = "Role of the cluster autoscaler."
  value       = aws_iam_role.pod["autoscaler"].arn
}

output "node_ports" {
  description = "Ports of the nodes that the load balancer leads to; the service has to listen there."
  value       = var.node_ports
}

output "url" {
  description = "Where clients find the service; null without a domain."
  value       = var.domain == null ? null : "https://${var.domain.name}"
}
