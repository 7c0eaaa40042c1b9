resource "google_service_account" "nodes" {
  project      = var.project
  account_id   = "${var.name}-nodes"
  display_name = "${var.name}: machines"
  depends_on   = [google_project_service.this]
}

# Logs and metrics, nothing else.
resource "google_project_iam_member" "nodes" {
  project = var.project
  role    = "roles/container.defaultNodeServiceAccount"
  member  = google_service_account.nodes.member
}

resource "google_artifact_registry_repository_iam_member" "nodes" {
  count = var.image_repository == null ? 0 : 1

  project    = var.project
  location   = var.image_repository.location
  repository = var.image_repository.name
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.nodes.member
}

resource "google_service_account" "chairlift" {
  project      = var.project
  account_id   = "${var.name}-service"
  display_name = "${var.name}: reads weights"
  depends_on   = [google_project_service.this]
}

resource "google_storage_bucket_iam_member" "chairlift" {
  bucket = google_storage_bucket.weights.name
  role   = "roles/storage.objectViewer"
  member = google_service_account.chairlift.member
}

# Pods with that service account of the cluster are this identity, and no others.
resource "google_service_account_iam_member" "chairlift" {
  service_account_id = google_service_account.chairlift.name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${google_container_cluster.this.workload_identity_config[0].workload_pool}[${var.namespace}/${var.service_account}]"
}
