output "cluster_name" {
  description = "For `gcloud container clusters get-credentials`."
  value       = google_container_cluster.this.name
}

output "cluster_endpoint" {
  description = "Address of the Kubernetes API, without its scheme."
  value       = google_container_cluster.this.endpoint
}

output "cluster_ca" {
  description = "Authority of the Kubernetes API, PEM in base64."
  value       = google_container_cluster.this.master_auth[0].cluster_ca_certificate
}

output "weights_bucket" {
  description = "Where the weights belong."
  value       = google_storage_bucket.weights.name
}

output "service_account_annotations" {
  description = "Of the service's account: makes its pods the identity that reads weights."
  value       = { "iam.gke.io/gcp-service-account" = google_service_account.chairlift.email }
}

output "node_ports" {
  description = "Ports of the nodes that the load balancer leads to; the service has to listen there."
  value       = var.node_ports
}

output "url" {
  description = "Where clients find the service; null without a domain."
  value       = var.domain == null ? null : "https://${var.domain.name}"
}
